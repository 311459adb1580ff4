"""The list of operations, the choice of a workspace, and the pages for what is not there."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from ledger.models import Membership
from ledger.selectors import PAGE_LENGTH
from tests.arrange import Agent, Arranged, arrange
from tests.browser.scenes import person

BACKEND = "allauth.account.auth_backends.AuthenticationBackend"


def browser(user: object) -> Client:
    client = Client()
    client.force_login(user, backend=BACKEND)  # type: ignore[arg-type]
    return client


@pytest.fixture
def viewer(workspace: Arranged) -> Client:
    return browser(person(workspace, "viewer", None))


def record(agent: Agent, workspace: Arranged, operation_id: str) -> str:
    assert agent.put_intent(operation_id, workspace.intent()).status_code == 201
    return operation_id


def names_in(client: Client, address: str) -> list[str]:
    return re.findall(r'<td class="what"><a href="/operations/([^"]+)"', client.get(address).content.decode())


def test_the_way_in_leads_to_the_queue(viewer: Client) -> None:
    response = viewer.get("/")
    assert (response.status_code, response.url) == (302, "/unknowns")


def test_nobody_gets_in_without_signing_in() -> None:
    for page in ("/", "/operations", "/unknowns"):
        assert Client().get(page).url.startswith("/accounts/login/")


def test_operations_stand_newest_first_and_each_once(
    workspace: Arranged, agent: Agent, viewer: Client
) -> None:
    made = [record(agent, workspace, f"op-page-{n:03}") for n in range(PAGE_LENGTH + 2)]
    first = names_in(viewer, "/operations")
    html = viewer.get("/operations").content.decode()
    following = re.search(r'rel="next" href="([^"]+)"', html)
    assert following is not None
    rest = names_in(viewer, f"/operations{following[1]}")
    assert first + rest == made[::-1]


def test_a_search_compares_the_beginning_character_by_character(
    workspace: Arranged, agent: Agent, viewer: Client
) -> None:
    for name in ("op_1", "opx1", "op_12", "OP_1"):
        record(agent, workspace, name)
    assert set(names_in(viewer, "/operations?q=op_")) == {"op_1", "op_12"}
    assert names_in(viewer, "/operations?q=op%25") == []  # no operation ID may hold it


def test_a_whole_name_leads_to_its_page(workspace: Arranged, agent: Agent, viewer: Client) -> None:
    record(agent, workspace, "op-alone")
    assert viewer.get("/operations?q=op-alone").url == "/operations/op-alone"


@pytest.mark.parametrize(
    "query", ["q=%00", "q=<script>", "q=%F0%9F%92%A9", "after=x", "after=1", "q=" + "x" * 5000]
)
def test_a_search_that_means_nothing_finds_nothing(viewer: Client, query: str) -> None:
    response = viewer.get(f"/operations?{query}")
    assert response.status_code == 200
    assert "<script>" not in response.content.decode()


def test_an_empty_workspace_shows_a_first_request(viewer: Client) -> None:
    assert b"Nothing has been recorded yet" in viewer.get("/operations").content


# Which workspace.


def test_a_person_looks_into_the_workspaces_of_their_own_alone(workspace: Arranged) -> None:
    somebody = person(workspace, "viewer", None)
    second, foreign = arrange(), arrange()
    Membership.objects.create(user=somebody, workspace_id=second.id, role="operator")
    client = browser(somebody)
    for asked, seen in ((second, second), (foreign, second), (workspace, workspace)):
        client.post("/workspace", {"workspace": asked.id})
        ribbon = re.search(
            r'<header class="ribbon".*?</header>', client.get("/operations").content.decode(), re.DOTALL
        )
        assert ribbon is not None
        assert seen.name in ribbon[0]
        assert "TEST" in ribbon[0]


def test_a_membership_that_ended_ends_the_choice(workspace: Arranged) -> None:
    somebody = person(workspace, "viewer", None)
    second = arrange()
    membership = Membership.objects.create(user=somebody, workspace_id=second.id, role="viewer")
    client = browser(somebody)
    client.post("/workspace", {"workspace": second.id})
    membership.delete()
    assert workspace.name in client.get("/operations").content.decode()


@pytest.mark.parametrize("named", ["", "x", "-1", "0", "99999999999999999999"])
def test_a_workspace_that_is_none_changes_nothing(workspace: Arranged, viewer: Client, named: str) -> None:
    assert viewer.post("/workspace", {"workspace": named}).status_code == 302
    assert workspace.name in viewer.get("/operations").content.decode()


# What is not there.


def test_what_is_not_there_says_that_nothing_was_changed(viewer: Client) -> None:
    response = viewer.get("/operations/op-nobody-knows")
    assert response.status_code == 404
    assert b"Nothing was changed" in response.content


def test_every_page_carries_the_policy_and_nothing_inline(
    workspace: Arranged, agent: Agent, viewer: Client
) -> None:
    name = record(agent, workspace, "op-policy")
    for client, page in (
        (viewer, "/unknowns"),
        (viewer, "/operations"),
        (viewer, f"/operations/{name}"),
        (viewer, "/operations/none"),
        (Client(), "/accounts/login/"),
    ):
        response = client.get(page)
        html = response.content.decode()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", html)
        assert all(" src=" in tag or "application/json" in tag for tag in re.findall(r"<script[^>]*>", html))
