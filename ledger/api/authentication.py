"""The credential of a request. Nothing here opens a door: the statement that acts checks it in the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from ledger import errors, tokens
from ledger.keys import current
from ledger.permits import PermitInvalid, PermitStatement, read
from ledger.services.permits import authenticate
from ledger.services.writing import Caller


@dataclass(frozen=True, slots=True)
class Credential:
    """A token as it is looked for in the database."""

    token_id: str
    secret_hash: bytes


def bearer(request: HttpRequest) -> str:
    """The bearer token; raises Unauthenticated where there is none."""
    scheme, _, token = str(request.META.get("HTTP_AUTHORIZATION", "")).partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise errors.Unauthenticated()
    return token.strip()


def credential(request: HttpRequest) -> Credential:
    """The runtime token of a request, well formed; raises Unauthenticated."""
    return credential_of(bearer(request))


def credential_of(token: str) -> Credential:
    presented = tokens.parse(token)
    if presented is None:
        raise errors.Unauthenticated()
    return Credential(presented.token_id, tokens.hash_secret(presented.secret, current().pepper))


def permit_statement(token: str) -> PermitStatement | None:
    """The permit that this token is, None where it is none of ours."""
    try:
        return read(token, current())
    except PermitInvalid:
        return None


class RuntimeToken(BaseAuthentication):
    """For the calls that DRF serves: ``request.user`` is the Caller. ``scope`` is the view's."""

    def authenticate(self, request: Request) -> tuple[Any, None]:
        scope = getattr(request.parser_context["view"], "scope", "read")
        held = credential(request._request)
        caller: Caller = authenticate(held.token_id, held.secret_hash, scope)
        return caller, None

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="counterfoil"'
