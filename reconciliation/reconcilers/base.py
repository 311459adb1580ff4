"""Who asks a receiver: what a reconciler is, how one is found by its ``kind``, and the door it is called through.

A reconciler speaks to the network and to nothing else: no database, no decision, never a change at the receiver.
``kind`` in a capability's ``reconciler`` block is one of

* a built-in name: ``http_lookup``;
* the name of an entry point in the group ``counterfoil.reconcilers``;
* a dotted path, ``package.module.Class`` or ``package.module:Class``, to a class that is called without arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, runtime_checkable

from ledger.contracts import Contract, Lookup
from reconciliation.findings import Finding, FindingKind, Question

ENTRY_POINT_GROUP: Final = "counterfoil.reconcilers"

BUILT_IN: Final[Mapping[str, str]] = {
    "http_lookup": "reconciliation.reconcilers.http_lookup:HttpLookup",
}

Problem = tuple[str, str]
"""(path in the configuration, why it cannot work)"""

logger = logging.getLogger(__name__)


@runtime_checkable
class Reconciler(Protocol):
    """Asks one kind of receiver. Instances are shared by threads: they keep nothing between two questions."""

    def look_up(self, question: Question) -> Finding:
        """Return the receiver's answer within ``question.timeout_s``; what went wrong is a finding as well."""

    def validate(self, configuration: Mapping[str, Any], contract: Contract) -> list[Problem]:
        """Return everything that keeps this configuration from working, paths below ``reconciler``; empty = good."""


class UnknownReconciler(LookupError):
    """No reconciler has this kind, or what the kind names is no reconciler. ``why`` says which."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind
        self.why = why


@lru_cache(maxsize=128)
def reconciler(kind: str) -> Reconciler:
    """Return the reconciler of this kind; raise ``UnknownReconciler``.

    A dotted path imports what it names: a kind comes from the people who run the service, never from a request.
    """
    path = BUILT_IN.get(kind)
    if path is None:
        named = entry_points(group=ENTRY_POINT_GROUP, name=kind)
        path = next((entry.value for entry in named), kind)
    module_name, _, class_name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not class_name:
        raise UnknownReconciler(kind, "neither built in, nor an entry point, nor a dotted path")
    try:
        made = getattr(import_module(module_name), class_name)()
    except Exception as error:
        raise UnknownReconciler(kind, f"{type(error).__name__}: {error}") from error
    if not isinstance(made, Reconciler):
        raise UnknownReconciler(kind, "has no look_up and validate")
    return made


def validate(configuration: Mapping[str, Any], contract: Contract) -> list[Problem]:
    """Return everything that keeps a capability's ``reconciler`` block from working, kind included; empty = good."""
    kind = configuration.get("kind")
    if not isinstance(kind, str):
        return [("reconciler.kind", "is required: the name of a reconciler")]
    try:
        found = reconciler(kind)
    except UnknownReconciler as error:
        return [("reconciler.kind", f"names no reconciler: {error.why}")]
    return found.validate(configuration, contract)


def look_up(question: Question) -> Finding:
    """Return what the question's reconciler finds. Never raises: what a reconciler lets escape is *unclear*.

    ``no_lookup`` where the contract offers none (``none``, ``callback``) or no reconciler is configured.
    """
    if question.lookup in (Lookup.NONE, Lookup.CALLBACK) or not question.configuration:
        return Finding(kind=FindingKind.NO_LOOKUP, scope=f"{question.receiver.name} cannot be asked")
    try:
        return reconciler(str(question.configuration.get("kind"))).look_up(question)
    except UnknownReconciler as error:
        return Finding(kind=FindingKind.UNCLEAR, why="unknown_reconciler", scope=error.kind)
    except Exception as error:
        # The one place where everything is caught: a bug in a reconciler must cost a look-up, not the worker.
        logger.exception("The reconciler of %s failed", question.receiver.name)
        return Finding(kind=FindingKind.UNCLEAR, why=f"reconciler_failed:{type(error).__name__}")
