"""Times, durations and states as every page writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.template import Library
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ledger import wording

register = Library()

MINUTE, HOUR, DAY = 60, 3600, 86_400

_NOTHING = format_html("<span class=quiet>{}</span>", "–")


@register.simple_tag
def when(moment: datetime | str | None, now: datetime | None = None) -> SafeString:
    """The moment in UTC as ``<time>``: the clock alone on ``now``'s day, else with its date; ISO 8601 on hover.

    Text is taken for ISO 8601, as the database writes it into JSON.
    """
    if moment is None or moment == "":
        return _NOTHING
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    utc = moment.astimezone(UTC)
    iso = utc.isoformat(timespec="seconds").replace("+00:00", "Z")
    today = (now or datetime.now(UTC)).astimezone(UTC).date()
    if utc.date() == today:
        text = f"{utc:%H:%M:%S}"
    elif utc.year == today.year:
        text = f"{utc.day} {utc:%b %H:%M}"
    else:
        text = f"{utc.day} {utc:%b %Y}"
    return format_html('<time datetime="{}" title="{}">{}</time>', iso, iso, text)


@register.filter
def lasting(span: timedelta | float | None) -> str:
    """A duration in its two largest units: ``42 s``, ``42 min``, ``1 h 05 min``, ``3 d 4 h``."""
    if span is None:
        return "–"
    seconds = int(span.total_seconds() if isinstance(span, timedelta) else span)
    if seconds < MINUTE:
        return f"{max(seconds, 0)} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE} min"
    if seconds < DAY:
        return f"{seconds // HOUR} h {seconds % HOUR // MINUTE:02d} min"
    return f"{seconds // DAY} d {seconds % DAY // HOUR} h"


@register.simple_tag
def between(earlier: datetime | None, later: datetime | None) -> str:
    """How long from one moment to another."""
    return "–" if earlier is None or later is None else lasting(later - earlier)


@register.filter
def source_in_words(source: str) -> str:
    """Whose word a piece of evidence is."""
    return wording.SOURCES.get(source, wording.words(source))


@register.filter
def flag_in_words(flag: str) -> str:
    """What stays on a record whose discrepancy was settled."""
    return wording.FLAGS.get(flag, wording.words(flag))


@register.inclusion_tag("ledger/_state.html")
def state(badge: tuple[str, str]) -> dict[str, str]:
    """A state's icon, word and colour: never one of them alone. ``badge`` is ``wording.badge``'s pair."""
    return {"loudness": str(badge[0]), "word": badge[1]}


@register.inclusion_tag("ledger/_who.html")
def by(kind: str, name: str) -> dict[str, str]:
    """Who did it: an icon and a word for the kind, and the name."""
    return {"kind": kind, "name": name}
