"""One unknown outcome or discrepancy in the operators' queue, every question asked about it, and how it ended."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

CLOCK = models.Func(function="clock_timestamp", output_field=models.DateTimeField())


class CaseKind(models.TextChoices):
    """Why a case exists."""

    UNKNOWN = "unknown"  # dispatched, and whether the effect exists is not known
    DISCREPANCY = "discrepancy"  # record and world disagree
    NO_ENTRY = "no_entry"  # something is said of a name that is not on record


class Case(models.Model):
    """The row is the queue: due at ``next_check_at``, held until ``leased_until`` by the worker with the highest ``fence``.

    ``escalated_at`` set: a person is needed (the machine goes on asking, hourly). ``version`` rises with each change that
    a decision may depend on, so that one taken on an old page is refused. ``proposal``: one person's decision that
    takes effect once a second person confirms it.
    """

    workspace = models.ForeignKey("ledger.Workspace", models.PROTECT, db_constraint=False, related_name="+")
    invocation = models.ForeignKey("ledger.Invocation", models.PROTECT, null=True, related_name="cases")
    operation_id = models.TextField()
    kind = models.TextField(choices=CaseKind)
    why = models.TextField()
    opened_at = models.DateTimeField(db_default=CLOCK)
    version = models.IntegerField(default=1)

    changed_at = models.DateTimeField(db_default=CLOCK)  # when, by whom and how ``version`` last rose
    changed_by = models.TextField(default="")
    changed_what = models.TextField(default="")

    lookups = models.IntegerField(default=0)
    next_check_at = models.DateTimeField(null=True)
    leased_until = models.DateTimeField(null=True)  # null: nobody holds it
    asking_at = models.DateTimeField(null=True)  # the holder has begun to ask
    unanswered = models.IntegerField(default=0)  # look-ups begun since the last whose answer was recorded
    fence = models.BigIntegerField(default=0)
    last_asked_at = models.DateTimeField(null=True)
    last_answer = models.TextField(default="")  # one sentence for people
    last_reason = models.TextField(default="")  # the last verdict's
    absent_sightings = ArrayField(models.DateTimeField(), default=list)  # look-ups that count for absence

    escalated_at = models.DateTimeField(null=True)
    escalation = models.TextField(null=True)  # the verdict's reason
    waiting_until = models.DateTimeField(null=True)  # a person said: still unknown, wait until then
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    proposal = models.ForeignKey("Resolution", models.PROTECT, null=True, related_name="+")
    closed_at = models.DateTimeField(null=True)
    closed_by = models.TextField(null=True)  # reconciler | runtime | operator

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("invocation",),
                condition=models.Q(closed_at__isnull=True),
                name="one_open_case_per_invocation",
            ),
            models.UniqueConstraint(
                fields=("workspace", "operation_id"),
                condition=models.Q(closed_at__isnull=True, invocation__isnull=True),
                name="one_open_case_per_missing_name",
            ),
        )
        indexes = (
            models.Index(
                fields=("next_check_at",), condition=models.Q(closed_at__isnull=True), name="cases_due"
            ),
            models.Index(
                fields=("workspace", "opened_at", "id"),
                condition=models.Q(closed_at__isnull=True),
                name="open_cases",
            ),
            models.Index(fields=("workspace", "operation_id"), name="cases_of_a_name"),
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.operation_id}"


class Lookup(models.Model):
    """One question asked and what came back. Append-only; the raw answer is an Evidence row of the ledger."""

    workspace = models.ForeignKey("ledger.Workspace", models.PROTECT, db_constraint=False, related_name="+")
    case = models.ForeignKey(Case, models.PROTECT, related_name="asked")
    fence = models.BigIntegerField()
    asked_by = models.TextField()  # the kind of reconciler
    asked_at = models.DateTimeField()
    answered_at = models.DateTimeField(db_default=CLOCK)
    finding = models.TextField()  # the finding's kind
    summary = models.TextField()  # one sentence for people
    detail = models.JSONField(default=dict)  # items, completeness, status: what was judged
    verdict = models.TextField()
    reason = models.TextField()
    evidence_id = models.BigIntegerField(null=True)

    class Meta:
        indexes = (models.Index(fields=("case", "id"), name="lookups_of_a_case"),)

    def __str__(self) -> str:
        return f"{self.finding} → {self.verdict}"


class Resolution(models.Model):
    """A person's typed decision on a case, with evidence and a remark. Append-only."""

    class Kind(models.TextChoices):
        HAPPENED = "happened"
        DID_NOT_HAPPEN = "did_not_happen"
        WAIT = "wait"
        DUPLICATE = "duplicate"
        DIVERGED = "diverged"
        COMPENSATED = "compensated"
        ABANDONED = "abandoned"

    workspace = models.ForeignKey("ledger.Workspace", models.PROTECT, db_constraint=False, related_name="+")
    case = models.ForeignKey(Case, models.PROTECT, related_name="resolutions")
    kind = models.TextField(choices=Kind)
    remark = models.TextField()
    evidence = models.TextField(default="")  # what the person saw, in their words
    receiver_references = ArrayField(models.TextField(), default=list)
    wait_until = models.DateTimeField(null=True)
    case_version = models.IntegerField()  # the version that was decided on
    compensated_by = models.TextField(null=True)  # the operation that made up for this one
    takes_effect = models.BooleanField(default=True)  # False: it waits for a second person
    confirms = models.ForeignKey("self", models.PROTECT, null=True, related_name="confirmations")
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    seconded_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    decided_at = models.DateTimeField(db_default=CLOCK)

    class Meta:
        indexes = (models.Index(fields=("case", "id"), name="resolutions_of_a_case"),)

    def __str__(self) -> str:
        return f"{self.kind} by {self.decided_by}"


class SweepRun(models.Model):
    """The last sweep, of whichever process: one row, so that a page can say how long ago anybody looked."""

    ended_at = models.DateTimeField(db_default=CLOCK)
    took_ms = models.IntegerField()
    expired = models.IntegerField()  # leases written down
    opened = models.IntegerField()  # cases
    closed = models.IntegerField()
    claimed = models.IntegerField()  # look-ups handed out

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(id=1), name="one_row_for_the_last_sweep"),)

    def __str__(self) -> str:
        return f"{self.ended_at}"
