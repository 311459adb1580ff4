"""The number that stands beside *Unknowns* on every page."""

from __future__ import annotations

from django.template import Context, Library

from reconciliation import selectors

register = Library()


@register.simple_tag(takes_context=True)
def waiting(context: Context) -> int | None:
    """How many cases wait for a person: as the page has counted them, else counted now, in the page's transaction.

    None for somebody without a workspace.
    """
    if "waiting" in context:
        return int(context["waiting"])
    member = getattr(context.get("request"), "member", None)
    return None if member is None else selectors.waiting(member.workspace_id)
