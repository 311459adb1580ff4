"""The order of clocks: each must outlast the one inside it, or work that is still under way is handed out again."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

ORDER = (
    ("RECEIVER_TIMEOUT_S", "a receiver's time to answer one look-up"),
    ("LOOKUP_SOFT_LIMIT_S", "the job that asks is interrupted"),
    ("LOOKUP_HARD_LIMIT_S", "the job that asks is killed"),
    ("CASE_LEASE_S", "the case may be claimed by another worker"),
    ("visibility_timeout", "the broker delivers the job again"),
)


def check(settings: Any) -> None:
    """Raises ImproperlyConfigured, naming the two clocks that are not in order."""
    read = [getattr(settings, name) for name, _ in ORDER[:-1]]
    read.append(settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"])
    for (name, what), shorter, (longer_name, longer_what), longer in zip(
        ORDER, read, ORDER[1:], read[1:], strict=False
    ):
        if not 0 < shorter < longer:
            raise ImproperlyConfigured(
                f"{name} ({shorter} s: {what}) must be shorter than {longer_name} ({longer} s: {longer_what})."
            )
