"""The record itself: what was intended, permitted, attempted and observed.

Names never age out (operation ID, digest, state, references, keys); the nullable bodies do, by retention. State is in
no index: settling an operation updates its row in place, and open work is found through ``Reservation``.
"""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from ledger.models.contracts import Capability, Receiver
from ledger.models.tenancy import Runtime, Workspace
from ledger.states import AttemptState, Standing, State


class Shared(models.ForeignKey):  # type: ignore[type-arg]
    """A foreign key to a row that every request shares: no database constraint (see ``tenancy``), no index of its own."""

    def __init__(self, to: Any, on_delete: Any = models.PROTECT, **options: Any) -> None:
        options.setdefault("db_constraint", False)
        options.setdefault("db_index", False)
        options.setdefault("related_name", "+")
        super().__init__(to, on_delete, **options)


class Task(models.Model):
    """The durable goal that operations serve; its name is the runtime's."""

    workspace = Shared(Workspace)
    task_id = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=("workspace", "task_id"), name="one_task_per_task_id"),)

    def __str__(self) -> str:
        return self.task_id


class Invocation(models.Model):
    """One governed invocation of one capability, under the operation ID the orchestrator minted."""

    id = models.UUIDField(primary_key=True)
    workspace = Shared(Workspace)
    operation_id = models.TextField()
    task = models.ForeignKey(Task, models.PROTECT, related_name="invocations", db_index=False)
    capability = Shared(Capability)
    receiver = Shared(Receiver)
    recorded_by = Shared(Runtime, null=True)

    actor_subject = models.TextField()
    on_behalf_of = models.TextField(null=True)
    arguments = models.TextField(null=True)  # canonical JSON; sensitive values stand as null, see ``sealed``
    sealed = models.BinaryField(null=True)  # encrypted {pointer: value}
    salt = models.BinaryField(null=True)
    arguments_digest = models.TextField()
    twin_digest = models.TextField(
        null=True
    )  # where the digest is salted: a keyed hash that equal arguments share
    business_reference = models.TextField(null=True)
    idempotency_key = models.TextField()
    key_given = models.BooleanField(default=False)
    amount_value = models.TextField(null=True)  # a decimal, spelled as it was given
    amount_currency = models.TextField(null=True)
    checkpoint = models.TextField(null=True)  # JSON
    purpose = models.TextField(null=True)  # the agent's words
    supersedes = models.TextField(null=True)
    superseded_by = models.TextField(null=True)
    compensates = models.TextField(null=True)
    approvals_needed = models.SmallIntegerField(default=0)
    approval_reason = models.TextField(null=True)

    state = models.TextField(default=State.INTENDED)
    standing = models.TextField(default=Standing.NONE)
    flags = ArrayField(models.TextField(), default=list)
    version = models.IntegerField(default=1)  # = the position of its newest entry
    attempt_count = models.IntegerField(default=0)
    first_permit_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)  # when the receiver was last asked about it

    outcome = models.TextField(null=True)
    receiver_reference = models.TextField(null=True)
    result = models.TextField(null=True)  # JSON, as the receiver or the runtime gave it
    outcome_source = models.TextField(null=True)  # runtime | lookup | callback | operator
    settled_at = models.DateTimeField(null=True)
    denial_reason = models.TextField(null=True)
    denial_class = models.TextField(null=True)
    denial_clears_at = models.DateTimeField(null=True)

    created_at = models.DateTimeField(db_default=Now())
    intent_valid_until = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("workspace", "operation_id"), name="one_invocation_per_operation_id"
            ),
            models.UniqueConstraint(
                fields=("receiver", "idempotency_key"), name="one_invocation_per_idempotency_key"
            ),
            models.CheckConstraint(condition=models.Q(state__in=list(State)), name="state_is_known"),
            models.CheckConstraint(condition=models.Q(standing__in=list(Standing)), name="standing_is_known"),
        )
        indexes = (
            models.Index(fields=("task", "id"), name="operations_of_a_task"),
            models.Index(
                fields=("workspace", "compensates"),
                condition=models.Q(compensates__isnull=False),
                name="compensations_of_an_operation",
            ),
            # Its column changes seldom, so settling an operation still updates the row in place.
            models.Index(
                fields=("id",), condition=models.Q(standing=Standing.DISCREPANCY), name="discrepancies"
            ),
        )

    def __str__(self) -> str:
        return self.operation_id


class Attempt(models.Model):
    """One granted permit: one transport try. ``number`` is the fencing token, rising by one for the operation's life."""

    workspace = Shared(Workspace)
    invocation = models.ForeignKey(Invocation, models.PROTECT, related_name="attempts", db_index=False)
    number = models.IntegerField()
    state = models.TextField(default=AttemptState.OPEN)
    nonce_hash = models.BinaryField()
    permitted_at = models.DateTimeField()
    lease_until = models.DateTimeField()
    reported_at = models.DateTimeField(null=True)  # when the permit's holder reported on it
    ended_at = models.DateTimeField(null=True)
    fault = models.TextField(null=True)
    runtime = Shared(Runtime, null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("invocation", "number"), name="one_attempt_per_number"),
            models.UniqueConstraint(
                fields=("invocation",),
                condition=models.Q(state=AttemptState.OPEN),
                name="one_open_attempt_per_invocation",
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=list(AttemptState)), name="attempt_state_is_known"
            ),
        )

    def __str__(self) -> str:
        return f"{self.invocation_id} #{self.number}"


class Reservation(models.Model):
    """Held while an operation is dispatched or unknown: the small table in which open work is found.

    ``lease_until`` is the open attempt's; null once the outcome is unknown. Twins are looked for here, so that a first
    permit never searches history.
    """

    invocation = models.OneToOneField(
        Invocation, models.PROTECT, primary_key=True, related_name="reservation"
    )
    workspace = Shared(Workspace)
    operation_id = models.TextField()
    capability_name = models.TextField()
    business_reference = models.TextField(null=True)
    twin_digest = models.TextField()
    lease_until = models.DateTimeField(null=True)
    held_since = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (
            models.Index(
                fields=("workspace", "capability_name", "twin_digest"), name="reservations_by_arguments"
            ),
            models.Index(
                fields=("workspace", "capability_name", "business_reference"),
                name="reservations_by_reference",
            ),
            models.Index(fields=("lease_until",), name="reservations_by_lease"),
        )

    def __str__(self) -> str:
        return self.operation_id


class EvidenceSource(models.TextChoices):
    """Who says so."""

    RECEIVER_RESPONSE = "receiver_response"  # what the runtime says the receiver answered
    LOOKUP = "lookup"
    CALLBACK = "callback"
    OPERATOR = "operator"  # an attestation, never shown as the receiver's word
    RUNTIME = "runtime"  # a claim


class Evidence(models.Model):
    """What somebody can show about one operation. Append-only; ``raw`` and ``parsed`` may age out, the digest stays."""

    workspace = Shared(Workspace)
    invocation = models.ForeignKey(Invocation, models.PROTECT, related_name="evidence", db_constraint=False)
    attempt_number = models.IntegerField(null=True)
    source = models.TextField(choices=EvidenceSource)
    authenticated = models.BooleanField(
        default=False
    )  # the receiver itself, by signature or by an authoritative look-up
    claim = models.TextField()  # completed | denied | not_sent | unknown | the finding's kind
    stored_as = models.TextField()
    receiver_reference = models.TextField(null=True)
    scope = models.TextField(default="")  # what was asked, in words
    raw = models.BinaryField(null=True)
    raw_sha256 = models.BinaryField()
    raw_size = models.IntegerField()
    parsed = models.TextField(null=True)  # JSON, best effort
    as_of = models.DateTimeField(null=True)  # the receiver's own time, where it says one
    recorded_at = models.DateTimeField(
        db_default=models.Func(function="clock_timestamp", output_field=models.DateTimeField())
    )
    recorded_by = models.TextField()

    class Meta:
        verbose_name_plural = "evidence"

    def __str__(self) -> str:
        return f"{self.source}: {self.claim}"


class ParkedEvidence(models.Model):
    """What arrived for a name that is not on record. An intent that meets a parked outcome starts unknown."""

    class Kind(models.TextChoices):
        OUTCOME = "outcome"
        CALLBACK = "callback"
        NO_ENTRY = "no_entry"  # a runtime resumed and expected a record: nothing is known of the effect

    workspace = Shared(Workspace)
    operation_id = models.TextField()
    attempt_number = models.IntegerField(null=True)
    kind = models.TextField(choices=Kind)
    raw = models.BinaryField(null=True)
    raw_sha256 = models.BinaryField()
    raw_size = models.IntegerField()
    recorded_at = models.DateTimeField(
        db_default=models.Func(function="clock_timestamp", output_field=models.DateTimeField())
    )
    recorded_by = models.TextField()
    matched_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (
            models.Index(
                fields=("workspace", "operation_id"),
                condition=models.Q(matched_at__isnull=True),
                name="parked_and_not_matched",
            ),
        )
        verbose_name_plural = "parked evidence"

    def __str__(self) -> str:
        return f"{self.kind} for {self.operation_id}"


class Grant(models.Model):
    """The standing of an approval as a permit sees it. Nobody can approve yet: a permit finds none, and waits."""

    invocation = models.OneToOneField(Invocation, models.PROTECT, primary_key=True, related_name="grant")
    workspace = Shared(Workspace)
    binding = models.TextField()
    needed = models.SmallIntegerField()
    approver_ids = ArrayField(models.BigIntegerField(), default=list)  # who has approved so far
    until = models.DateTimeField(null=True)
    refused_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{len(self.approver_ids)} of {self.needed}"


class Entry(models.Model):
    """One line of the audit trail: who did what, from which state to which. Append-only.

    ``position`` counts without gaps within an operation. ``content_hash`` is SHA-256 over the canonical content,
    computed by the database for every writer (``ledger_entry_content``). ``detail`` is JSON text and may age out.
    """

    workspace = Shared(Workspace)
    invocation = models.ForeignKey(
        Invocation, models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    position = models.IntegerField(null=True)
    at = models.DateTimeField(
        db_default=models.Func(function="clock_timestamp", output_field=models.DateTimeField())
    )
    actor_kind = models.TextField()  # runtime | user | reconciler | system
    actor_name = models.TextField()
    event = models.TextField()
    from_state = models.TextField(null=True)
    to_state = models.TextField(null=True)
    detail = models.TextField(null=True)
    detail_sha256 = models.BinaryField(null=True)
    content_hash = models.BinaryField(default=b"")  # set by the database

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("invocation", "position"), name="one_entry_per_position"),
        )
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return f"{self.event} {self.from_state} → {self.to_state}"
