"""How moments leave the API."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ledger.api.representation import z


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (None, None),
        (datetime(2026, 11, 30, 12, 0, 5, tzinfo=UTC), "2026-11-30T12:00:05.000000Z"),
        # PostgreSQL leaves trailing zeros away, Python leaves a fraction of nought away.
        ("2026-11-30T12:00:05+00:00", "2026-11-30T12:00:05.000000Z"),
        ("2026-11-30T12:00:05.19015+00:00", "2026-11-30T12:00:05.190150Z"),
        ("2026-11-30T12:00:05.190151+00:00", "2026-11-30T12:00:05.190151Z"),
    ],
)
def test_the_same_moment_is_the_same_text(moment: datetime | str | None, text: str | None) -> None:
    assert z(moment) == text
