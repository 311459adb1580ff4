from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings

from reconciliation import clocks


class ReconciliationConfig(AppConfig):
    name = "reconciliation"
    verbose_name = "from unknown to evidence"

    def ready(self) -> None:
        clocks.check(settings)
