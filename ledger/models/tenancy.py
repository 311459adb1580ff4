"""Who: the workspace, its members, its runtimes and what they may use.

``Workspace``, ``Membership``, ``Runtime`` and ``RuntimeToken`` are read before a workspace is known (a token or a
session leads to it). The first two carry no row-level policy; the runtime's rows are reached without a workspace only
through the function ``ledger_authenticate``.

Foreign keys to rows that every request shares (workspace, capability, receiver, runtime) are not database constraints
on the hot tables: each insert would lock the same parent row, and sixteen writers would queue behind it. The hot
functions have just read those rows, and row-level security ties each row to its workspace.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class Role(models.TextChoices):
    """What a member may do in a workspace."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    AUDITOR = "auditor"
    ADMIN = "admin"


class Workspace(models.Model):
    """The tenant."""

    name = models.TextField(unique=True)
    environment = models.TextField(default="live")  # the word in tokens and on the console's ribbon
    mandates_open = models.BooleanField(default=False)  # everybody may use everything: for trying things out
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """One person's role in one workspace; a person may hold several."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    workspace = models.ForeignKey(Workspace, models.CASCADE)
    role = models.TextField(choices=Role)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("user", "workspace", "role"), name="one_membership_per_user_and_role"
            ),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="role_is_known"),
        )

    def __str__(self) -> str:
        return f"{self.user} {self.role}"


class Runtime(models.Model):
    """An agent runtime: what its tokens may do, for which capabilities and which subjects."""

    workspace = models.ForeignKey(Workspace, models.CASCADE)
    name = models.TextField()
    scopes = ArrayField(models.TextField())
    capabilities = ArrayField(models.TextField())  # patterns: * matches any characters
    subjects = ArrayField(models.TextField())
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    revoked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=("workspace", "name"), name="one_runtime_per_name"),)

    def __str__(self) -> str:
        return self.name


class RuntimeToken(models.Model):
    """One credential of a runtime; two may be alive while one replaces the other. The secret is kept as a keyed hash."""

    runtime = models.ForeignKey(Runtime, models.CASCADE, related_name="tokens")
    workspace = models.ForeignKey(Workspace, models.CASCADE)
    token_id = models.TextField(unique=True)
    secret_hash = models.BinaryField()
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.token_id


class Mandate(models.Model):
    """Standing authority of actors to use capabilities, until it ends or is revoked.

    ``limits`` is the provision file's list; empty means no limit.
    """

    workspace = models.ForeignKey(Workspace, models.CASCADE)
    subject = models.TextField()  # pattern
    capability = models.TextField()  # pattern
    valid_until = models.DateTimeField()
    limits = models.JSONField(default=list)
    revoked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=("workspace",), name="mandates_of_a_workspace"),)

    def __str__(self) -> str:
        return f"{self.subject} → {self.capability}"


class Pause(models.Model):
    """Permits stop while it stands; look-ups go on. Neither capability nor receiver named: the whole workspace."""

    workspace = models.ForeignKey(Workspace, models.CASCADE)
    capability = models.TextField(null=True)  # the name, every version
    receiver = models.ForeignKey("ledger.Receiver", models.CASCADE, null=True)
    reason = models.TextField()
    paused_by = models.TextField()
    ends_at = models.DateTimeField(null=True)
    lifted_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (
            models.Index(
                fields=("workspace",),
                condition=models.Q(lifted_at__isnull=True),
                name="pauses_standing_in_a_workspace",
            ),
        )

    def __str__(self) -> str:
        return f"{self.capability or self.receiver or self.workspace}: {self.reason}"
