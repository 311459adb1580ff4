"""What every answer carries, and what a runtime's request is spared."""

from __future__ import annotations

from contextlib import closing

import pytest
from django.test import Client


@pytest.mark.parametrize(
    "path",
    [
        "/static/admin/css/base.css",  # served by WhiteNoise, before any view
        "/accounts/login/",  # a page
        "/api/v1/no-such-thing",  # the door for runtimes
        "/no-such-page",
    ],
)
def test_every_answer_carries_the_policy(path: str) -> None:
    with closing(Client().get(path)) as answer:
        policy = answer.headers["Content-Security-Policy"].split("; ")

    assert "default-src 'none'" in policy
    assert not [directive for directive in policy if "unsafe" in directive or "*" in directive]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_runtimes_request_gets_no_session_and_no_user() -> None:
    answer = Client().get("/api/v1/no-such-thing")

    assert answer.status_code == 404
    assert not answer.cookies
    assert not hasattr(answer.wsgi_request, "session")
    assert not hasattr(answer.wsgi_request, "user")
    assert answer.headers["Content-Length"] == str(len(answer.content))


def test_a_path_that_only_looks_like_the_door_is_a_page() -> None:
    assert hasattr(Client().get("/api").wsgi_request, "session")


def test_nobody_signs_up() -> None:
    answer = Client().get("/accounts/signup/")

    assert b"<form" not in answer.content.lower() or b"password1" not in answer.content


@pytest.mark.parametrize("path", ["/accounts/email/", "/accounts/2fa/", "/admin/"])
def test_pages_ask_for_a_login(path: str) -> None:
    answer = Client().get(path)

    assert answer.status_code == 302
    assert "/login/" in answer.headers["Location"]
