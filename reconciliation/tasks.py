"""Celery's doors. A message only says "look": losing one loses nothing, the next sweep finds the row."""

from __future__ import annotations

import logging

from celery import shared_task
from django.conf import settings
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ledger import failpoints
from reconciliation import services

logger = logging.getLogger(__name__)


@shared_task(ignore_result=True)
def sweep() -> dict[str, int]:
    """One pass over what is due, its look-ups handed out as jobs of their own; {} where another ended just now."""
    if services.just_swept():
        return {}
    swept = services.sweep()
    hand_out(swept.claims)
    return swept.counts()


@shared_task(
    ignore_result=True, soft_time_limit=settings.LOOKUP_SOFT_LIMIT_S, time_limit=settings.LOOKUP_HARD_LIMIT_S
)
def look_up(workspace_id: int, case_id: int, fence: int) -> bool:
    """One look-up of a claimed case; False where the claim is somebody else's by now."""
    return services.look_up(workspace_id, case_id, fence) is not None


def hand_out(claims: tuple[services.Claim, ...]) -> int:
    """Publishes one job per claim and returns how many; after the first failure the rest are released unpublished.

    Bounded: one publish waits for the broker's socket timeouts at most, and is not tried again.
    """
    for index, one in enumerate(claims):
        failpoints.reach("publish.before")
        try:
            # Without an end, which a worker would judge by its own clock: a late job finds its fence overtaken.
            look_up.apply_async((one.workspace_id, one.case_id, one.fence), retry=False)
        except (OperationalError, RedisError, OSError) as error:
            logger.warning(
                "the broker takes no jobs (%s); %d look-ups wait for the next sweep",
                error,
                len(claims) - index,
            )
            services.release(claims[index:])
            return index
    return len(claims)
