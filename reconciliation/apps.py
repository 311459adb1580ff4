from __future__ import annotations

from django.apps import AppConfig


class ReconciliationConfig(AppConfig):
    name = "reconciliation"
    verbose_name = "from unknown to evidence"
