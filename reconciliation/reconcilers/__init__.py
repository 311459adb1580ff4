"""Ask receivers what happened. Start at ``base``: ``look_up(question)`` and ``validate(configuration, contract)``."""

from reconciliation.reconcilers.base import (
    Reconciler,
    UnknownReconciler,
    look_up,
    reconciler,
    validate,
)

__all__ = ["Reconciler", "UnknownReconciler", "look_up", "reconciler", "validate"]
