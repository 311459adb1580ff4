"""Who is looking at the console, in which workspace and in which roles; and the transaction a page reads in.

The workspace comes from the person's memberships and the choice kept in the session, never from an address or a
form. Every page of the three apps goes through ``member_page``; what a role may do is written in ``Member`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render

from ledger.models import Membership
from ledger.models.tenancy import Role

P = ParamSpec("P")

CHOSEN = "workspace"  # the session's key for the workspace that was chosen last


@dataclass(frozen=True, slots=True)
class Choice:
    """One workspace that a person may look into."""

    id: int
    name: str
    environment: str


@dataclass(frozen=True, slots=True)
class Member:
    """A person in one workspace. ``choices`` are all the workspaces they belong to, this one included."""

    user_id: int
    workspace: Choice
    roles: frozenset[str]
    choices: tuple[Choice, ...]

    @property
    def workspace_id(self) -> int:
        return self.workspace.id

    @property
    def roles_in_words(self) -> str:
        """The roles in the order in which they are listed everywhere."""
        return ", ".join(role for role in Role.values if role in self.roles)

    @property
    def operates(self) -> bool:
        """May claim, ask again, note and conclude. Everybody else reads."""
        return Role.OPERATOR in self.roles


class MemberRequest(HttpRequest):
    """A request whose member is known; what ``member_page`` hands to a view."""

    member: Member


def member_of(request: HttpRequest) -> Member | None:
    """The person in the workspace of their session, or in their first one by name; None without any membership."""
    user_id = request.user.pk
    if user_id is None:
        return None
    held = list(
        Membership.objects.filter(user_id=user_id)
        .order_by("workspace__name")
        .values_list("workspace_id", "workspace__name", "workspace__environment", "role")
    )
    if not held:
        return None
    choices = tuple(dict.fromkeys(Choice(id_, name, environment) for id_, name, environment, _ in held))
    chosen = request.session.get(CHOSEN)
    workspace = next((choice for choice in choices if choice.id == chosen), choices[0])
    roles = frozenset(role for id_, _, _, role in held if id_ == workspace.id)
    return Member(user_id, workspace, roles, choices)


def member_page(
    view: Callable[Concatenate[MemberRequest, P], HttpResponseBase],
) -> Callable[..., HttpResponseBase]:
    """The view with ``request.member`` set. A person without a membership gets a page that says so.

    What is shown here is kept by no cache, and one address serves the page and its fragments.
    """

    @wraps(view)
    def door(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        member = member_of(request)
        response: HttpResponseBase
        if member is None:
            response = render(request, "ledger/no_membership.html", status=403)
        else:
            request.member = member  # type: ignore[attr-defined]
            response = view(request, *args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-store"
        response.headers["Vary"] = "HX-Request, Cookie"
        return response

    return door


@contextmanager
def reading(member: Member) -> Iterator[None]:
    """A transaction in which the workspace's rows are visible and nothing can be written, whatever a page calls."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('counterfoil.workspace', %s, true), set_config('transaction_read_only', 'on', true)",
                [str(member.workspace_id)],
            )
        yield


def not_changed(response: HttpResponse, request: HttpRequest, etag: str) -> HttpResponse:
    """The response under its tag, or 304 without a body where the browser holds just that."""
    quoted = f'"{etag}"'
    if request.headers.get("If-None-Match") == quoted:
        response = HttpResponse(status=304)
    response.headers["ETag"] = quoted
    return response
