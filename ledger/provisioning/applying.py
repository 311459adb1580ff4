"""A plan → the workspace's rows, in one transaction, each change with its Entry.

Brought to the file's state is what the file speaks of. Nothing that an operation refers to is ever deleted:

* a **capability** that is gone is disabled; a change of receiver, account, schema, contract or rule is a new version,
  and what was recorded under an older one stays under it. The reconciler's settings and the summary change in place,
  also for the older versions that ask the same receiver, account and kind of look-up: what is open there is asked with
  the settings that work;
* a **runtime** that is gone is revoked, with its tokens; a **mandate** that is gone is revoked;
* a **member** that is gone loses the roles here, and keeps the account, which other workspaces may know;
* a **receiver** that is gone stays, for the operations that name it.

A new token, supplied or minted, is the runtime's current one; the one before ends ``OVERLAP_S`` later, so that a
running fleet can be moved over, and older ones end at once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib.auth import get_user_model, password_validation
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import Q
from django.utils.module_loading import import_string

from ledger import keys, tenancy, tokens
from ledger.models import (
    Capability,
    Entry,
    Mandate,
    Membership,
    Receiver,
    Reservation,
    Runtime,
    RuntimeToken,
    Workspace,
)
from ledger.provisioning import differences
from ledger.provisioning.checking import Asker, Rule, approvers_needed, check, unmeetable
from ledger.provisioning.plan import (
    CapabilityPlan,
    Checks,
    MandatePlan,
    MemberPlan,
    Plan,
    Problem,
    ReceiverPlan,
    Refused,
    RuntimePlan,
)

OVERLAP_S: Final = 86_400
"""How long the token before the current one still opens: a day, in which every process has been started anew."""

_ONE_AT_A_TIME: Final = 0x70726F76  # "prov": the advisory lock under which files are applied

Mark = Literal["+", "~", "-"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the workspace and the file: ``+`` made, ``~`` changed, ``-`` taken away."""

    mark: Mark
    what: str
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.mark} {self.what} {self.name}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Result:
    """What was done, or with ``dry_run`` would have been.

    ``runtimes``: ``{"name", "token"}`` for each of the file's; the token only where it was minted now, once and never
    again. ``receivers``: ``{"name", "callback_endpoint"}``.
    """

    workspace: str
    dry_run: bool
    changes: tuple[Change, ...]
    runtimes: tuple[dict[str, str], ...] = field(repr=False)
    receivers: tuple[dict[str, str], ...]
    warnings: tuple[Problem, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "workspace": self.workspace,
            "dry_run": self.dry_run,
            "changes": [asdict(change) for change in self.changes],
            "runtimes": list(self.runtimes),
            "receivers": list(self.receivers),
            "warnings": [warning._asdict() for warning in self.warnings],
        }


def configured_checks() -> Checks:
    """The checks that ``settings.LEDGER_CHECKS`` names by dotted path: config wires up what ledger may not import."""
    return Checks(
        receiver=import_string(settings.LEDGER_CHECKS["receiver"]),
        reconciler=import_string(settings.LEDGER_CHECKS["reconciler"]),
    )


def apply(
    document: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    dry_run: bool = False,
    rotate: Set[str] = frozenset(),
    checks: Checks | None = None,
) -> Result:
    """Brings the workspace to the document's state; all of it or nothing. A second time changes nothing.

    ``rotate`` names runtimes that get a new token. ``checks`` None: those of the settings. Raises Refused with every
    fault found, KeysMissing without a key folder. With ``dry_run`` the same is done and then rolled back.
    """
    plan = check(document, environ, checks=checks or configured_checks())
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ONE_AT_A_TIME])
        workspace, made = Workspace.objects.get_or_create(
            name=plan.workspace, defaults={"environment": settings.ENVIRONMENT}
        )
        with tenancy.workspace(workspace.pk):
            writer = _Writer(workspace, plan, rotate)
            writer.write(made=made)
        if writer.problems:
            raise Refused(writer.problems)
        transaction.set_rollback(dry_run)
    return writer.result(dry_run=dry_run)


class _Writer:
    """One run over one workspace, inside its transaction. Problems found here roll everything back."""

    def __init__(self, workspace: Workspace, plan: Plan, rotate: Set[str]) -> None:
        self.workspace = workspace
        self.plan = plan
        self.rotate = rotate
        self.changes: list[Change] = []
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = list(plan.warnings)
        self.minted: dict[str, str] = {}
        self.endpoints: dict[str, str] = {}
        self.now = _database_now()

    def result(self, *, dry_run: bool) -> Result:
        shown = {} if dry_run else self.minted  # a token that was rolled back opens nothing
        return Result(
            workspace=self.workspace.name,
            dry_run=dry_run,
            changes=tuple(self.changes),
            runtimes=tuple(
                {"name": runtime.name, "token": shown[runtime.name]}
                if runtime.name in shown
                else {"name": runtime.name}
                for runtime in self.plan.runtimes or ()
            ),
            receivers=tuple(
                {"name": name, "callback_endpoint": endpoint} for name, endpoint in self.endpoints.items()
            ),
            warnings=tuple(self.warnings),
        )

    def write(self, *, made: bool) -> None:
        plan = self.plan
        self._write_workspace(made=made)
        people = self._write_members(plan.members)
        self._write_runtimes(plan.runtimes, people)
        self._write_receivers(plan.receivers)
        self._write_capabilities(plan.capabilities)
        self._write_mandates(plan.mandates)
        self._judge_rules()

    def changed(self, mark: Mark, what: str, name: str, detail: str = "") -> None:
        """Notes one change, and writes its Entry. Nothing secret may stand in ``detail``."""
        self.changes.append(Change(mark, what, name, detail))
        event = {"+": "added", "~": "changed", "-": "removed"}[mark]
        Entry.objects.create(
            workspace=self.workspace,
            actor_kind="system",
            actor_name="provision",
            event=f"{what}_{event}",
            detail=json.dumps({"name": name, "what": detail}, ensure_ascii=False),
        )

    # -- workspace and members

    def _write_workspace(self, *, made: bool) -> None:
        workspace, wanted_open = self.workspace, self.plan.mandates_open
        if made:
            self.changed("+", "workspace", workspace.name)
        else:
            self._update("workspace", workspace.name, workspace, {"environment": settings.ENVIRONMENT})
        if wanted_open is not None and workspace.mandates_open != wanted_open:
            workspace.mandates_open = wanted_open
            workspace.save(update_fields=["mandates_open"])
            detail = (
                "open, everybody may use everything" if wanted_open else "closed, only what a mandate covers"
            )
            self.changed("~", "mandates", workspace.name, detail)

    def _write_members(self, wanted: Iterable[MemberPlan] | None) -> dict[str, User]:
        """The members' accounts by address, for the runtimes' owners."""
        held: dict[int, set[str]] = {}
        people: dict[str, User] = {}
        rows = Membership.objects.filter(workspace=self.workspace).select_related("user")
        for row in rows.order_by("pk"):
            held.setdefault(row.user_id, set()).add(row.role)
            people[row.user.email.lower()] = row.user
        if wanted is None:
            return people
        kept: set[int] = set()
        named: dict[str, User] = {}
        for member in wanted:
            user = named[member.email] = self._write_member(member, held)
            if user.pk in kept:
                self.problems.append(Problem(f"{member.path}.email", "belongs to another member's account"))
            kept.add(user.pk)
        for user in people.values():
            if user.pk not in kept:
                Membership.objects.filter(workspace=self.workspace, user=user).delete()
                self.changed("-", "member", user.email, ", ".join(sorted(held[user.pk])))
        return named

    def _write_member(self, member: MemberPlan, held: Mapping[int, set[str]]) -> User:
        user, told = _account(member)
        before, after = held.get(user.pk, set()), set(member.roles)
        Membership.objects.filter(workspace=self.workspace, user=user, role__in=before - after).delete()
        for role in member.roles:
            if role not in before:
                Membership.objects.create(workspace=self.workspace, user=user, role=role)
        if not before:
            self.changed("+", "member", member.email, ", ".join([*member.roles, *told]))
        elif before != after or told:
            gained = [f"+{role}" for role in sorted(after - before)]
            lost = [f"-{role}" for role in sorted(before - after)]
            self.changed("~", "member", member.email, ", ".join([*gained, *lost, *told]))
        if not user.is_active:
            self.warnings.append(Problem(member.path, "the account is deactivated, and stays so"))
        if member.password is not None:
            try:
                password_validation.validate_password(member.password, user)
            except ValidationError as weak:
                why = f"the password is weak: {' '.join(weak.messages)}"
                self.warnings.append(Problem(f"{member.path}.password_env", why))
        return user

    # -- runtimes and their tokens

    def _write_runtimes(self, wanted: Iterable[RuntimePlan] | None, people: Mapping[str, User]) -> None:
        names = set()
        for plan in wanted or ():
            names.add(plan.name)
            owner = None
            if plan.owner is not None:
                owner = people.get(plan.owner)
                if owner is None:
                    self.problems.append(Problem(f"{plan.path}.owner", "is no member of the workspace"))
            self._write_runtime(plan, owner)
        self.problems += [
            Problem("rotate", f"{name} is no runtime of this file") for name in sorted(self.rotate - names)
        ]
        if wanted is None:
            return
        gone = Runtime.objects.filter(workspace=self.workspace, revoked_at=None).exclude(name__in=names)
        for row in gone.order_by("name"):
            row.revoked_at = self.now
            row.save(update_fields=["revoked_at"])
            row.tokens.filter(revoked_at=None).update(revoked_at=self.now)
            self.changed("-", "runtime", row.name, "revoked, with its tokens")

    def _write_runtime(self, plan: RuntimePlan, owner: User | None) -> None:
        fields: dict[str, Any] = {
            "scopes": list(plan.scopes),
            "capabilities": list(plan.capabilities),
            "subjects": list(plan.subjects),
            "owner": owner,
        }
        row = Runtime.objects.filter(workspace=self.workspace, name=plan.name).first()
        if row is None:
            row = Runtime.objects.create(workspace=self.workspace, name=plan.name, **fields)
            self.changed("+", "runtime", plan.name, ", ".join(plan.scopes))
        elif row.revoked_at is not None:
            for name, value in {**fields, "revoked_at": None}.items():
                setattr(row, name, value)
            row.save()
            self.changed("+", "runtime", plan.name, "again; the tokens it had stay revoked")
        else:
            self._update("runtime", plan.name, row, fields)
        self._write_token(plan, row)

    def _write_token(self, plan: RuntimePlan, runtime: Runtime) -> None:
        alive = Q(expires_at=None) | Q(expires_at__gt=self.now)
        live = list(runtime.tokens.filter(alive, revoked_at=None).order_by("-pk"))
        live.sort(key=lambda token: token.expires_at is not None)  # the current one first
        rotate = plan.name in self.rotate
        if plan.token is not None:
            if rotate:
                why = "token_env supplies this token: put another into its variable instead"
                self.problems.append(Problem("rotate", f"{plan.name}: {why}"))
            self._supply_token(plan, runtime, plan.token, live)
        elif rotate or not live:
            minted = tokens.mint(self.workspace.environment, pepper=keys.current().pepper)
            self.minted[plan.name] = minted.token
            self._add_token(runtime, minted.token_id, minted.secret_hash, live, "minted")

    def _supply_token(
        self, plan: RuntimePlan, runtime: Runtime, given: tokens.Presented, live: list[RuntimeToken]
    ) -> None:
        path = f"{plan.path}.token_env"
        if given.env != self.workspace.environment:
            why = f"the token says {given.env}, and this service is {self.workspace.environment}"
            self.warnings.append(Problem(path, why))
        secret_hash = tokens.hash_secret(given.secret, keys.current().pepper)
        row = RuntimeToken.objects.filter(workspace=self.workspace, token_id=given.token_id).first()
        if row is None:
            try:
                with transaction.atomic():
                    self._add_token(runtime, given.token_id, secret_hash, live, "supplied")
            except IntegrityError:
                # Another workspace's: row-level security hides the row, the constraint still knows it.
                self.problems.append(Problem(path, "the token belongs to another runtime"))
        elif row.runtime_id != runtime.pk:
            self.problems.append(Problem(path, "the token belongs to another runtime"))
        elif bytes(row.secret_hash) != secret_hash:
            self.problems.append(Problem(path, "a token with this id and another secret is on record"))
        elif row not in live:
            self.problems.append(Problem(path, "the token was revoked or has ended: supply a new one"))
        elif row.expires_at is not None:  # back to the token before: it is the current one again
            row.expires_at = None
            row.save(update_fields=["expires_at"])
            self._retire([token for token in live if token.pk != row.pk])
            self.changed("~", "token", f"{runtime.name} {row.token_id}", "current again")

    def _add_token(
        self, runtime: Runtime, token_id: str, secret_hash: bytes, live: list[RuntimeToken], how: str
    ) -> None:
        RuntimeToken.objects.create(
            runtime=runtime, workspace=self.workspace, token_id=token_id, secret_hash=secret_hash
        )
        self.changed("+", "token", f"{runtime.name} {token_id}", how)
        self._retire(live)

    def _retire(self, live: list[RuntimeToken]) -> None:
        """Of the tokens that are no longer current, the first gets a day and the others end now."""
        for position, token in enumerate(live):
            name = f"{token.runtime.name} {token.token_id}"
            if position == 0:
                ends = self.now + timedelta(seconds=OVERLAP_S)
                token.expires_at = min(token.expires_at or ends, ends)
                token.save(update_fields=["expires_at"])
                self.changed("~", "token", name, f"ends at {differences.moment_text(token.expires_at)}")
            else:
                token.revoked_at = self.now
                token.save(update_fields=["revoked_at"])
                self.changed("-", "token", name, "revoked: two are alive")

    # -- receivers

    def _write_receivers(self, wanted: Iterable[ReceiverPlan] | None) -> None:
        for plan in wanted or ():
            fields: dict[str, Any] = {
                "base_url": plan.base_url,
                "headers": dict(plan.headers),
                "allow_private_addresses": plan.allow_private_addresses,
                "callback_secret_env": plan.callback_secret_env,
            }
            row = Receiver.objects.filter(workspace=self.workspace, name=plan.name).first()
            if row is None:
                row = Receiver.objects.create(
                    workspace=self.workspace,
                    name=plan.name,
                    callback_endpoint=secrets.token_urlsafe(24),  # 192 bits: an address nobody finds
                    **fields,
                )
                self.changed("+", "receiver", plan.name, plan.base_url)
            else:
                if row.base_url != plan.base_url:
                    self._warn_of_open_operations(plan, row)
                self._update("receiver", plan.name, row, fields)
            self.endpoints[plan.name] = row.callback_endpoint

    def _warn_of_open_operations(self, plan: ReceiverPlan, row: Receiver) -> None:
        held = Reservation.objects.filter(workspace=self.workspace, invocation__receiver=row).count()
        if held:
            why = (
                f"{held} operation(s) in flight or unknown will be asked about at the new address: where that is another "
                "account or ledger, it will say that their effects do not exist. Give it a receiver of its own, then"
            )
            self.warnings.append(Problem(f"{plan.path}.base_url", why))

    # -- capabilities

    def _write_capabilities(self, wanted: Iterable[CapabilityPlan] | None) -> None:
        if wanted is None:
            return
        receivers = {row.name: row for row in Receiver.objects.filter(workspace=self.workspace)}
        names = set()
        for plan in wanted:
            names.add(plan.name)
            receiver = receivers.get(plan.receiver)
            if receiver is None:
                self.problems.append(Problem(f"{plan.path}.receiver", "is no receiver of the workspace"))
            else:
                self._write_capability(plan, receiver)
        gone = Capability.objects.filter(workspace=self.workspace, current=True, enabled=True)
        for row in gone.exclude(name__in=names).order_by("name"):
            row.enabled = False
            row.save(update_fields=["enabled"])
            self.changed("-", "capability", row.name, "disabled")

    def _write_capability(self, plan: CapabilityPlan, receiver: Receiver) -> None:
        fixed = differences.fixed(plan, receiver)
        free = differences.free(plan)
        versions = list(
            Capability.objects.filter(workspace=self.workspace, name=plan.name).order_by("-version")
        )
        current = next((row for row in versions if row.current), None)
        if current is None:
            version = versions[0].version + 1 if versions else 1
            current = Capability.objects.create(
                workspace=self.workspace, name=plan.name, version=version, **fixed, **free
            )
            self.changed("+", "capability", plan.name, f"version {version}")
        elif differing := differences.differing(current, fixed, plan):
            current.current = False
            current.save(update_fields=["current"])
            version = versions[0].version + 1
            renewed = Capability.objects.create(
                workspace=self.workspace, name=plan.name, version=version, **fixed, **free
            )
            detail = f"version {current.version} → {version}: {', '.join(differing)}"
            current = renewed
            self.changed("~", "capability", plan.name, detail)
        else:
            again = {} if current.enabled else {"enabled": True}
            self._update("capability", plan.name, current, {**free, **again})
        asking = {name: free[name] for name in ("reconciler", "matches_evidence")}
        for row in versions:
            if row.pk != current.pk and differences.asks_alike(row, current):
                self._update("capability", f"{plan.name} version {row.version}", row, asking)

    def _judge_rules(self) -> None:
        """Whether the rules that now stand can be met by the members who now are, whatever the file left out."""
        paths = {plan.name: plan.path for plan in self.plan.capabilities or ()}
        standing = Capability.objects.filter(workspace=self.workspace, current=True, enabled=True)
        approvers = Membership.objects.filter(workspace=self.workspace, role="approver")
        runtimes = Runtime.objects.filter(workspace=self.workspace, revoked_at=None).exclude(owner=None)
        self.problems += unmeetable(
            [
                Rule(paths.get(row.name, f"capability {row.name}"), row.name, approvers_needed(row.approval))
                for row in standing.order_by("pk")
            ],
            approvers=frozenset(row.user_id for row in approvers),
            askers=[
                Asker(row.name, row.owner_id, tuple(row.scopes), tuple(row.capabilities))
                for row in runtimes.order_by("name")
            ],
        )

    # -- mandates

    def _write_mandates(self, wanted: Iterable[MandatePlan] | None) -> None:
        if wanted is None:
            return
        standing = {
            (row.subject, row.capability): row
            for row in Mandate.objects.filter(workspace=self.workspace, revoked_at=None).order_by("pk")
        }
        kept = set()
        for plan in wanted:
            name = f"{plan.subject} → {plan.capability}"
            row = standing.get((plan.subject, plan.capability))
            if row is None:
                row = Mandate.objects.create(
                    workspace=self.workspace,
                    subject=plan.subject,
                    capability=plan.capability,
                    valid_until=plan.valid_until,
                )
                self.changed(
                    "+", "mandate", name, f"valid until: {differences.moment_text(plan.valid_until)}"
                )
            else:
                self._update("mandate", name, row, {"valid_until": plan.valid_until})
            kept.add(row.pk)
            if plan.valid_until <= self.now:
                self.warnings.append(
                    Problem(f"{plan.path}.valid_until", "is over: the mandate covers nothing")
                )
        rest = Mandate.objects.filter(workspace=self.workspace, revoked_at=None).exclude(pk__in=kept)
        for row in rest.order_by("pk"):
            row.revoked_at = self.now
            row.save(update_fields=["revoked_at"])
            self.changed("-", "mandate", str(row), "revoked")

    # -- shared

    def _update(self, what: str, name: str, row: Any, fields: Mapping[str, Any]) -> None:
        """Brings the row to these values; says which differed."""
        told = []
        for field_name, value in fields.items():
            before = getattr(row, field_name)
            if not differences.same(before, value):
                setattr(row, field_name, value)
                told.append((field_name, before, value))
        if told:
            row.save(update_fields=[field_name for field_name, _, _ in told])
            visible = [differences.told_change(*each) for each in told if each[0] != "matches_evidence"]
            self.changed("~", what, name, ", ".join(visible or ["reconciler"]))


# -- accounts --------------------------------------------------------------------------------------------------------


def _account(member: MemberPlan) -> tuple[User, list[str]]:
    """The person's account, made where there is none, with a verified address; and what was done to it.

    A password that the file names is that person's from now on; without one an account that exists keeps its own, and
    a new one cannot sign in by password.
    """
    told = []
    address = (
        EmailAddress.objects.filter(email__iexact=member.email, verified=True).select_related("user").first()
    )
    user: User | None = (
        address.user
        if address
        else get_user_model().objects.filter(Q(username=member.email) | Q(email__iexact=member.email)).first()
    )
    if user is None:
        user = get_user_model()(username=member.email, email=member.email)
        user.set_password(member.password)  # None: unusable
        user.save()
        told.append("new account" if member.password else "new account without a password")
    elif member.password is not None and not user.check_password(member.password):
        user.set_password(member.password)
        user.save(update_fields=["password"])
        told.append("password")
    if address is None:
        first = not EmailAddress.objects.filter(user=user, primary=True).exists()
        EmailAddress.objects.update_or_create(
            user=user,
            email=member.email,
            defaults={"verified": True},
            create_defaults={"verified": True, "primary": first},
        )
    return user, told


def _database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now
