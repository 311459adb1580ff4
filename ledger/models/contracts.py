"""What may be called: receivers, and the versions of each capability with the contract its receiver promises."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from ledger.models.tenancy import Workspace


class Receiver(models.Model):
    """A system in which effects happen. Header values may hold ``${NAME}``: secrets stay in the environment."""

    workspace = models.ForeignKey(Workspace, models.CASCADE)
    name = models.TextField()
    base_url = models.TextField()
    headers = models.JSONField(default=dict)
    allow_private_addresses = models.BooleanField(default=False)
    callback_endpoint = models.TextField(unique=True)  # opaque, minted once
    callback_secret_env = models.TextField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=("workspace", "name"), name="one_receiver_per_name"),)

    def __str__(self) -> str:
        return self.name


class Risk(models.TextChoices):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Duplicates(models.TextChoices):
    """What an unsettled twin (same capability, same business reference or arguments) does to a first permit."""

    HOLD = "hold"
    FLAG = "flag"
    OFF = "off"


class Capability(models.Model):
    """One version of a named effectful tool.

    A new version is a new row: receiver, schema, contract and rules never change under an invocation. The reconciler's
    settings and the texts may change in place. Exactly one version of a name is ``current``.
    """

    workspace = models.ForeignKey(Workspace, models.CASCADE)
    name = models.TextField()
    version = models.IntegerField()
    current = models.BooleanField(default=True)
    enabled = models.BooleanField(default=True)
    receiver = models.ForeignKey(Receiver, models.PROTECT)
    risk = models.TextField(choices=Risk, default=Risk.MEDIUM)
    lease_s = models.IntegerField(default=60)
    intent_valid_s = models.IntegerField(default=86_400)
    max_attempts = models.IntegerField(default=5)
    duplicates = models.TextField(choices=Duplicates, default=Duplicates.HOLD)
    amount = models.JSONField(null=True)  # {"value": pointer, "currency": pointer or code}
    summary = models.TextField(default="")
    arguments_schema = models.JSONField(null=True)
    sensitive = ArrayField(models.TextField(), default=list)  # JSON Pointers into the arguments
    audit_sensitive = models.BooleanField(default=False)  # all of them
    contract = models.JSONField()
    verified = models.BooleanField(default=False)  # two people checked the replay claim of this version
    approval = models.JSONField()
    reconciler = models.JSONField(null=True)
    matches_evidence = models.BooleanField(
        default=False
    )  # evidence is compared with the arguments field by field
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("workspace", "name", "version"), name="one_capability_per_name_and_version"
            ),
            models.UniqueConstraint(
                fields=("workspace", "name"),
                condition=models.Q(current=True),
                name="one_current_version_per_capability",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"
