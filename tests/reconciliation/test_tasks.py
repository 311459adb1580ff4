"""Celery's doors, opened by hand."""

from __future__ import annotations

from datetime import timedelta

from reconciliation import services, tasks
from reconciliation.models import CLOCK, SweepRun


def backdate(seconds: float) -> None:
    SweepRun.objects.update(ended_at=CLOCK - timedelta(seconds=seconds))


# F9 F18: a worker that comes back finds a message for every sweep that it missed
def test_a_backlog_of_sweeps_is_one_sweeps_work(record: None) -> None:
    services.sweep()
    assert tasks.sweep() == {}
    assert tasks.sweep() == {}
    backdate(1)
    assert tasks.sweep().keys() == {"expired", "opened", "closed", "claimed"}


# F24: a message carries no end, which the worker would judge by its own clock
def test_no_job_is_too_old_for_a_worker_whose_clock_runs_ahead() -> None:
    from django.conf import settings

    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        assert "expires" not in entry.get("options", {})
    assert tasks.look_up.expires is None
    assert tasks.sweep.expires is None
