"""Who gets an account: members that a provision file names, nobody by signing up."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class MembersOnly(DefaultAccountAdapter):  # type: ignore[misc]
    """Closes the sign-up page."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False
