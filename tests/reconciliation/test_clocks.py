from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from reconciliation import clocks

GOOD: dict[str, Any] = {
    "RECEIVER_TIMEOUT_S": 10,
    "LOOKUP_SOFT_LIMIT_S": 20,
    "LOOKUP_HARD_LIMIT_S": 30,
    "CASE_LEASE_S": 45,
    "CELERY_BROKER_TRANSPORT_OPTIONS": {"visibility_timeout": 600},
}


def test_the_settings_we_ship_are_in_order() -> None:
    clocks.check(settings)
    clocks.check(SimpleNamespace(**GOOD))


# C98
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        # a receiver that may take as long as the job
        ({"RECEIVER_TIMEOUT_S": 20}, "RECEIVER_TIMEOUT_S"),
        # killed before it was interrupted
        ({"LOOKUP_SOFT_LIMIT_S": 31}, "LOOKUP_SOFT_LIMIT_S"),
        # claimed by another while the first still asks
        ({"CASE_LEASE_S": 30}, "LOOKUP_HARD_LIMIT_S"),
        # delivered again while the claim still stands
        ({"CELERY_BROKER_TRANSPORT_OPTIONS": {"visibility_timeout": 45}}, "CASE_LEASE_S"),
        ({"RECEIVER_TIMEOUT_S": 0}, "RECEIVER_TIMEOUT_S"),
    ],
)
def test_clocks_out_of_order_are_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"^{named} "):
        clocks.check(SimpleNamespace(**{**GOOD, **changed}))
