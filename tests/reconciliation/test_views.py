"""The pages: who may see and do what, what a refusal looks like, and that looking changes nothing."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.utils import InternalError
from django.test import Client
from django.test.utils import CaptureQueriesContext

from ledger import tenancy
from ledger.access import Choice, Member, reading
from ledger.models import Entry, Membership, Task
from ledger.models.tenancy import Role
from ledger.states import State
from reconciliation import views
from reconciliation.models import Case, Lookup, Resolution
from reconciliation.selectors import PAGE, Tab
from tests.browser.scenes import (
    DIVERGED,
    DUPLICATED,
    NOTHING_FOUND,
    Scene,
    busy,
    effect,
    found,
    person,
    scene,
)
from tests.corpora import corpora
from tests.ledger.test_untrusted import read

BACKEND = "allauth.account.auth_backends.AuthenticationBackend"
HTMX = {"HX-Request": "true"}
REMARK = "Seen in the receiver's dashboard by hand."
QUERIES_MAX = 12  # BEGIN and COMMIT aside


def browser(user: Any, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user, backend=BACKEND)
    return client


@pytest.fixture
def stage(record: None) -> Scene:
    return scene()


@pytest.fixture
def operator(stage: Scene) -> Client:
    return browser(stage.operator)


def text_of(response: Any) -> str:
    words = unescape(re.sub(r"<[^>]+>", " ", response.content.decode()))
    return " ".join(words.split())


def decide(client: Client, stage: Scene, operation_id: str, kind: str, /, **fields: Any) -> Any:
    headers = fields.pop("headers", {})
    given = {
        "kind": kind,
        "remark": REMARK,
        "version": stage.version(operation_id),
        "stage": "record",
    } | fields
    return client.post(f"/operations/{operation_id}/decision", given, headers=headers)


def everything(stage: Scene) -> Any:
    """What a page could have changed."""
    with tenancy.workspace(stage.workspace.id):
        return [
            list(model.objects.filter(workspace_id=stage.workspace.id).order_by("pk").values())
            for model in (Case, Entry, Lookup, Resolution, Task)
        ]


PAGES = (
    "/unknowns",
    "/operations",
    "/operations/{}",
    "/operations/{}/decision",
    "/operations/{}/moved?seen=1",
)
ACTIONS = ("decision", "claim", "ask", "note", "confirmation")


# Who may look.


@pytest.mark.parametrize("address", PAGES)
def test_nobody_looks_without_signing_in(stage: Scene, address: str) -> None:
    response = Client().get(address.format(stage.unknown()))
    assert response.status_code == 302
    assert response.url.startswith("/accounts/login/")


@pytest.mark.parametrize("address", PAGES)
def test_a_person_in_no_workspace_is_told_so(stage: Scene, address: str) -> None:
    stranger = get_user_model().objects.create_user(f"stranger-{stage.workspace.name}", password="x")
    response = browser(stranger).get(address.format(stage.unknown()))
    assert response.status_code == 403
    assert "You are in no workspace yet" in text_of(response)


@pytest.mark.parametrize("address", PAGES[2:])
def test_another_workspaces_operation_does_not_exist(stage: Scene, address: str) -> None:
    theirs = scene().unknown()
    nobodys = "op-that-nobody-recorded"
    client = browser(stage.operator)
    answers = [client.get(address.format(name)) for name in (theirs, nobodys)]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize("action", ACTIONS)
def test_another_workspaces_operation_cannot_be_acted_upon(stage: Scene, action: str) -> None:
    other = scene()
    theirs = other.unknown()
    before = everything(other)
    fields = {"kind": "happened", "remark": REMARK, "references": "re_1", "version": 1, "stage": "record"}
    response = browser(stage.operator).post(f"/operations/{theirs}/{action}", fields)
    assert response.status_code == 404
    assert everything(other) == before


def test_lists_hold_ones_own_workspace_alone(stage: Scene) -> None:
    theirs = scene().unknown("certificate.send", arguments={"user_id": "u", "amount": 1})
    client = browser(stage.operator)
    for page in ("/unknowns", "/operations"):
        assert theirs not in client.get(page).content.decode()


# Who may act.


# C76
@pytest.mark.parametrize("role", [role for role in Role if role != Role.OPERATOR])
def test_whoever_is_no_operator_sees_no_control_and_is_refused(stage: Scene, role: Role) -> None:
    operation_id = stage.unknown()
    client = browser(person(stage.workspace, role, None))
    shown = client.get(f"/operations/{operation_id}").content.decode()
    for action in ACTIONS:
        assert f'action="/operations/{operation_id}/{action}"' not in shown
    before = everything(stage)
    fields = {"kind": "happened", "remark": REMARK, "references": "re_1", "version": 1, "stage": "record"}
    for action in ACTIONS:
        for headers in ({}, HTMX):
            response = client.post(f"/operations/{operation_id}/{action}", fields, headers=headers)
            assert response.status_code == 403, action
            assert "Your roles do not allow that" in text_of(response)
    assert everything(stage) == before


def test_a_role_lost_since_the_page_was_made_counts(stage: Scene) -> None:
    operation_id = stage.unknown()
    somebody = person(stage.workspace, "operator", None)
    client = browser(somebody)
    client.get(f"/operations/{operation_id}")
    somebody.membership_set.update(role="viewer")
    response = decide(client, stage, operation_id, "happened", references="re_1")
    assert response.status_code == 403
    assert stage.workspace.facts(operation_id).state is State.UNKNOWN


@pytest.mark.parametrize("action", ACTIONS)
def test_a_post_without_its_token_changes_nothing(stage: Scene, action: str) -> None:
    operation_id = stage.unknown()
    before = everything(stage)
    client = browser(stage.operator, enforce_csrf_checks=True)
    response = client.post(f"/operations/{operation_id}/{action}", {"remark": REMARK})
    assert response.status_code == 403
    assert "That form was too old" in text_of(response)
    assert everything(stage) == before


@pytest.mark.parametrize("action", ACTIONS[1:])
def test_an_action_is_no_link(stage: Scene, action: str) -> None:
    client = browser(stage.operator)
    assert client.get(f"/operations/{stage.unknown()}/{action}").status_code == 405


# Looking.


# C55
def test_looking_changes_nothing(stage: Scene, operator: Client) -> None:
    names = busy(stage)
    before = everything(stage)
    for address in PAGES:
        for name in names.values():
            for ask in (operator.get, operator.head):
                for headers in ({}, HTMX):
                    assert ask(address.format(name), headers=headers).status_code in (200, 204)
    for tab in Tab:
        operator.get(f"/unknowns?tab={tab}")
    assert everything(stage) == before


def test_a_pages_transaction_cannot_write(stage: Scene) -> None:
    here = Choice(stage.workspace.id, stage.workspace.name, "test")
    member = Member(stage.operator.pk, here, frozenset(), (here,))
    with pytest.raises(InternalError, match="read-only"), reading(member):
        Task.objects.create(workspace_id=stage.workspace.id, task_id="written")


@pytest.mark.parametrize("address", PAGES)
def test_no_page_is_kept_by_a_cache(stage: Scene, operator: Client, address: str) -> None:
    response = operator.get(address.format(stage.unknown()))
    assert response.headers["Cache-Control"] == "no-store"
    assert "HX-Request" in response.headers["Vary"]


@pytest.mark.parametrize("address", PAGES)
def test_a_page_asks_the_database_few_questions(stage: Scene, operator: Client, address: str) -> None:
    operation_id = busy(stage)["duplicate"]
    operator.get(address.format(operation_id))
    with CaptureQueriesContext(connection) as asked:
        operator.get(address.format(operation_id))
    queries = [one["sql"] for one in asked if one["sql"] not in ("BEGIN", "COMMIT")]
    assert len(queries) <= QUERIES_MAX, "\n".join(queries)


def test_more_rows_ask_no_more_questions(stage: Scene, operator: Client) -> None:
    counts = []
    for start in (0, 3):
        for number in range(start, start + 3):
            stage.unknown(
                "certificate.send", arguments={"user_id": f"u{number}", "amount": 1}, task_id=f"t{number}"
            )
        with CaptureQueriesContext(connection) as asked:
            operator.get("/unknowns")
        counts.append(len(asked))
    assert counts[0] == counts[1]


# The queue.


def test_unknown_is_never_called_failed(stage: Scene, operator: Client) -> None:
    names = busy(stage)
    for page in ("/unknowns", "/operations", *(f"/operations/{name}" for name in names.values())):
        said = text_of(operator.get(page)).lower()
        assert "fail" not in said
        assert "error" not in said


# C93
def test_the_counts_are_those_of_the_tabs(stage: Scene, operator: Client) -> None:
    busy(stage)
    for tab, rows in ((Tab.NEEDS_PERSON, 2), (Tab.DISCREPANCIES, 2), (Tab.RECONCILING, 2), (Tab.RESOLVED, 1)):
        html = operator.get(f"/unknowns?tab={tab}").content.decode()
        assert html.count("data-row") == rows, tab
        counted = dict(re.findall(r'\?tab=(\w+)"[^>]*>[^<]+<span class="n"[^>]*>(\d+)<', html))
        assert (counted["needs_person"], counted["discrepancies"], counted["reconciling"]) == ("2", "2", "2")
        assert "<title>(4) Unknowns" in html


def test_nothing_yet_shows_a_first_request(operator: Client) -> None:
    said = text_of(operator.get("/unknowns"))
    assert "Nothing has been recorded yet" in said
    assert "curl -X PUT http://testserver/api/v1/operations/op-1" in said


def test_all_clear_comes_with_its_proof(stage: Scene, operator: Client) -> None:
    from reconciliation import services

    stage.asked(stage.unknown(), found(effect("re_1")))
    services.sweep(claimed_at_most=0)
    said = text_of(operator.get("/unknowns"))
    assert "All clear: nobody is needed" in said
    assert re.search(r"Last sweep \d+ s ago", said)


def test_nothing_here_mentions_what_is_elsewhere(stage: Scene, operator: Client) -> None:
    stage.asked(stage.unknown(), DUPLICATED)
    assert "1 under Discrepancies" in text_of(operator.get("/unknowns"))


def test_an_empty_tab_is_not_all_clear_while_a_person_is_needed(stage: Scene, operator: Client) -> None:
    from reconciliation import services

    stage.unknown("certificate.send", arguments={"user_id": "u", "amount": 1})
    services.sweep(claimed_at_most=0)
    for tab in (Tab.RECONCILING, Tab.CALLBACK, Tab.DISCREPANCIES, Tab.SNOOZED):
        said = text_of(operator.get(f"/unknowns?tab={tab}"))
        assert "All clear" not in said, tab
        assert "1 under Needs a human." in said, tab


def test_a_sweep_that_stands_still_is_said_loudly(
    stage: Scene, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.unknown()
    monkeypatch.setattr(views, "SWEEP_IS_LATE", timedelta(0))
    html = operator.get("/unknowns?tab=reconciling").content.decode()
    assert re.search(r'class="notice" data-tone="loud" role="status"><b>Nobody has looked', html)


def test_a_queue_of_another_workspace_is_made_anew(stage: Scene, operator: Client) -> None:
    other = scene()
    Membership.objects.create(user=stage.operator, workspace_id=other.workspace.id, role="operator")
    operator.post("/workspace", {"workspace": stage.workspace.id})
    html = operator.get("/unknowns").content.decode()
    polled = unescape(re.findall(r'hx-get="(/unknowns\?[^"]+)"', html)[0])
    assert "HX-Refresh" not in operator.get(polled, headers=HTMX).headers
    operator.post("/workspace", {"workspace": other.workspace.id})
    response = operator.get(polled, headers=HTMX)
    assert (response.headers["HX-Refresh"], response.content) == ("true", b"")


def test_a_place_that_is_gone_says_so(stage: Scene, operator: Client) -> None:
    stage.unknown("certificate.send", arguments={"user_id": "u", "amount": 1})
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    said = text_of(operator.get("/unknowns", {"after": f"{later}~1"}))
    assert "No case stands at this place any more" in said


@pytest.mark.parametrize(
    "query", ["tab=everything", "after=yesterday", "after=~1", "after=2026-01-01~x", "tab=%00"]
)
def test_an_address_that_means_nothing_leads_to_the_first_page(operator: Client, query: str) -> None:
    response = operator.get(f"/unknowns?{query}")
    assert (response.status_code, response.url) == (302, "/unknowns")


def test_paging_shows_each_case_once(stage: Scene, operator: Client) -> None:
    made = {
        stage.unknown("certificate.send", arguments={"user_id": f"u{n}", "amount": n}, task_id=f"t{n}")
        for n in range(PAGE + 3)
    }
    seen: list[str] = []
    address = "/unknowns"
    while address:
        html = operator.get(address).content.decode()
        seen += re.findall(r'<td class="what"><a href="/operations/([^"]+)"', html)
        following = re.search(r'rel="next" href="([^"]+)"', html)
        address = following[1].replace("&amp;", "&") if following else ""
    assert len(seen) == len(made)
    assert set(seen) == made


def test_an_unchanged_queue_is_not_sent_again(stage: Scene, operator: Client) -> None:
    poll = {**HTMX, "HX-Target": "queue"}
    first = operator.get("/unknowns", headers=poll)
    assert first.content.decode().lstrip().startswith("<title>")
    for _ in range(3):  # the tag stands for a quarter of a minute: a turn of it may fall in between
        again = operator.get("/unknowns", headers={**poll, "If-None-Match": first.headers["ETag"]})
        if again.status_code == 304:
            break
        first = again
    assert (again.status_code, again.content) == (304, b"")
    stage.unknown("certificate.send", arguments={"user_id": "u", "amount": 1})
    changed = operator.get("/unknowns", headers={**poll, "If-None-Match": first.headers["ETag"]})
    assert changed.status_code == 200


# One operation.


def test_three_answers_stand_by_themselves(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown()
    stage.asked(operation_id, NOTHING_FOUND)
    said = text_of(operator.get(f"/operations/{operation_id}"))
    assert "Was it dispatched? Yes" in said
    assert "Did it happen? Unknown Nothing was found" in said
    assert "Is the evidence kept? It proves nothing yet 1 claim, 1 look-up" in said


def test_intended_stands_beside_found_with_the_difference(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown(arguments={"order_id": "7710", "amount": "1240.00", "currency": "USD"})
    stage.asked(operation_id, DIVERGED)
    html = operator.get(f"/operations/{operation_id}").content.decode()
    row = next(one for one in re.findall(r"<tr data-differs>.*?</tr>", html, re.DOTALL))
    said = " ".join(re.sub(r"<[^>]+>", " ", row).split())
    assert said == "amount 1240.00 (124000 there) 214000"
    assert text_of(operator.get(f"/operations/{operation_id}")).count("same") == 2


def test_a_sensitive_value_is_nowhere(stage: Scene, operator: Client) -> None:
    stage.workspace.capability(
        "card.charge",
        summary="Charge {card}",
        sensitive=["/card"],
        contract={"deduplicates": "none", "lookup": "none", "in_flight_s": 1},
    )
    operation_id = stage.unknown("card.charge", arguments={"card": "4000-0000-0000-0002", "for": "tea"})
    for page in (
        "/unknowns",
        "/operations",
        f"/operations/{operation_id}",
        f"/operations/{operation_id}/decision",
    ):
        html = operator.get(page).content.decode()
        assert "4000-0000" not in html
        assert "‹hidden›" in html
    assert "hidden: sensitive" in text_of(operator.get(f"/operations/{operation_id}"))


def test_the_agents_purpose_is_a_claim(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown(purpose="All \u202echecked, pay again.")
    said = text_of(operator.get(f"/operations/{operation_id}"))
    assert "The agent's purpose written by the agent, not verified" in said
    assert "U+202E" in said


def test_naughty_strings_stay_text_wherever_they_stand(stage: Scene, operator: Client) -> None:
    strings = [text for text in json.loads(corpora("blns.json").read_text("utf-8")) if "\0" not in text]
    names = []
    for start in range(0, len(strings), 130):
        some = strings[start : start + 130]
        names.append(
            stage.unknown(
                "certificate.send",
                arguments={
                    "user_id": some[0],
                    "amount": 1,
                    "strings": some,
                    "keys": dict.fromkeys(some, 1),
                },
                purpose="\n".join(some)[:1000],
                task_id=f"t{start}",
                actor={"subject": "agent:x", "on_behalf_of": "user:<script>alert(1)</script>"},
            )
        )
        decide(
            operator, stage, names[-1], "wait", remark="\n".join(some)[:4000], wait_until="2099-01-01T00:00"
        )
        operator.post(f"/operations/{names[-1]}/note", {"remark": "\n".join(some)[:3900]})
    for page in ("/unknowns", "/operations", *(f"/operations/{name}" for name in names)):
        for tag, attributes in read(operator.get(page).content.decode()).elements:
            assert tag not in {"iframe", "object", "embed", "style", "base", "img", "video", "body2"}, (
                page,
                tag,
            )
            assert tag != "script" or str(attributes.get("src", "")).startswith("/static/"), (
                page,
                attributes,
            )
            assert not any(name.startswith("on") for name in attributes), (page, attributes)
            assert not str(attributes.get("href", "")).lower().startswith(("javascript", "data")), (
                page,
                attributes,
            )


def test_a_name_without_a_record_has_a_page_and_a_case(stage: Scene, operator: Client) -> None:
    from reconciliation import services

    operation_id = stage.workspace.operation_id()
    body = stage.workspace.intent(expect="recorded")
    assert stage.agent.put_intent(operation_id, body).status_code == 404
    services.sweep(claimed_at_most=0)
    said = text_of(operator.get(f"/operations/{operation_id}"))
    assert "No record" in said
    assert "no record is no evidence that nothing happened" in said
    assert operation_id in operator.get("/unknowns").content.decode()


def test_a_page_learns_that_its_operation_has_moved(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown()
    html = operator.get(f"/operations/{operation_id}").content.decode()
    watched = re.search(r'hx-get="(/operations/[^"]+/moved\?seen=[^"]+)"', html)
    assert watched is not None
    assert operator.get(watched[1]).status_code == 204
    stage.asked(operation_id, NOTHING_FOUND)
    assert "This operation has moved" in text_of(operator.get(unescape(watched[1])))


@pytest.mark.parametrize("action", ACTIONS)
def test_a_form_of_another_workspaces_case_is_kept_from_the_operation_of_the_same_name(
    stage: Scene, operator: Client, action: str
) -> None:
    other = scene()
    Membership.objects.create(user=stage.operator, workspace_id=other.workspace.id, role="operator")
    operation_id = stage.unknown()
    other.unknown(operation_id=operation_id)
    operator.post("/workspace", {"workspace": stage.workspace.id})
    page = operator.get(f"/operations/{operation_id}").content.decode()
    case = re.search(r'name="case" value="(\d+)"', page)
    watched = re.search(r'hx-get="(/operations/[^"]+/moved[^"]+)"', page)
    assert case is not None
    assert watched is not None
    operator.post("/workspace", {"workspace": other.workspace.id})
    before = everything(stage), everything(other)
    fields = {
        "kind": "happened",
        "remark": REMARK,
        "references": "re_1",
        "stage": "record",
        "version": other.version(operation_id),
        "case": case[1],
    }
    response = operator.post(f"/operations/{operation_id}/{action}", fields, headers=HTMX)
    assert response.status_code == 409
    said = text_of(response)
    assert f"You look at the workspace {other.workspace.name}" in said
    if action in ("decision", "confirmation"):
        assert REMARK in said
        assert 'type="radio"' not in response.content.decode()
    assert (everything(stage), everything(other)) == before
    assert f"You look at the workspace {other.workspace.name} now" in text_of(
        operator.get(unescape(watched[1]))
    )


def test_arguments_that_are_shown_in_part_say_so(stage: Scene, operator: Client) -> None:
    def header(body: str) -> str:
        operation_id = stage.unknown(
            "certificate.send", arguments={"user_id": body, "amount": 1}, task_id=body[:9]
        )
        return text_of(operator.get(f"/operations/{operation_id}"))

    assert "all of them, as they are hashed" in header("short")
    said = header("x" * 200_000)
    assert "all of them, as they are hashed" not in said
    assert "shown in part" in said
    assert "198,000 more characters" in said


# Deciding.


def test_no_choice_is_made_for_a_person(stage: Scene, operator: Client) -> None:
    html = operator.get(f"/operations/{stage.unknown()}").content.decode()
    radios = re.findall(r'<input type="radio"[^>]*>', html)
    assert len(radios) >= 5
    assert not any("checked" in radio for radio in radios)


def test_what_is_not_possible_yet_says_when_it_is(stage: Scene, operator: Client) -> None:
    stage.workspace.capability(
        "certificate.send", contract={"deduplicates": "none", "lookup": "none", "in_flight_s": 3600}
    )
    operation_id = stage.unknown("certificate.send", arguments={"user_id": "u", "amount": 1})
    html = operator.get(f"/operations/{operation_id}").content.decode()
    radio = re.search(r'<input type="radio" name="kind" value="did_not_happen"[^>]*>', html)
    assert radio is not None
    assert "disabled" in radio[0]
    assert "The effect may still arrive: this cannot be said before" in text_of(
        operator.get(f"/operations/{operation_id}")
    )


@pytest.mark.parametrize("headers", [{}, HTMX], ids=["page", "fragment"])
def test_what_is_missing_is_said_beside_its_field_and_nothing_is_lost(
    stage: Scene, operator: Client, headers: dict[str, str]
) -> None:
    operation_id = stage.unknown()
    before = everything(stage)
    for step in ("review", "record"):
        response = decide(
            operator,
            stage,
            operation_id,
            "happened",
            remark="short",
            evidence="Kept words.",
            stage=step,
            headers=headers,
        )
        said = text_of(response)
        assert response.status_code == 422
        assert "Say why, in 10 characters or more." in said
        assert "Give the receiver's own reference of the effect." in said
        assert "Kept words." in said
    response = decide(operator, stage, operation_id, "", headers=headers)
    assert response.status_code == 422
    assert "Choose one." in text_of(response)
    assert everything(stage) == before


@pytest.mark.parametrize("until", ["soon", "2001-01-01T00:00", "2099-01-01T00:00", ""])
def test_a_wait_has_an_end_in_sight(stage: Scene, operator: Client, until: str) -> None:
    response = decide(operator, stage, stage.unknown(), "wait", wait_until=until)
    assert response.status_code == 422
    assert 'id="wait_until_error"' in response.content.decode()


def test_a_review_records_nothing_and_carries_everything(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown()
    before = everything(stage)
    response = decide(
        operator, stage, operation_id, "happened", references="re_9\nre_9", stage="review", headers=HTMX
    )
    html = response.content.decode()
    assert response.status_code == 200
    assert "the agent resumes with this reference" in text_of(response)
    assert everything(stage) == before
    carried = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', unescape(html)))
    assert (carried["kind"], carried["version"]) == ("happened", "1")
    edited = operator.post(f"/operations/{operation_id}/decision", carried | {"stage": "edit"}, headers=HTMX)
    assert REMARK in text_of(edited)
    assert 'value="happened" data-needs="references" checked' in edited.content.decode()


def test_a_decision_is_recorded_as_a_persons_word(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown()
    response = decide(operator, stage, operation_id, "happened", references="re_9")
    assert (response.status_code, response.url) == (302, f"/operations/{operation_id}")
    said = text_of(operator.get(response.url))
    assert "Recorded: it happened." in said
    assert "Did it happen? Yes a person's word: re_9" in said
    assert "A person's word · not authenticated" in said
    assert REMARK in said
    facts = stage.workspace.facts(operation_id)
    assert (facts.state, facts.row["receiver_reference"]) == (State.COMPLETED, "re_9")


def test_htmx_is_given_the_whole_case_once_it_is_decided(stage: Scene, operator: Client) -> None:
    response = decide(operator, stage, stage.unknown(), "happened", references="re_9", headers=HTMX)
    assert response.status_code == 200
    assert response.headers["HX-Retarget"] == "#case"
    html = response.content.decode()
    assert '<article id="case"' in html
    assert "<html" not in html
    assert re.search(r'id="nav-unknowns" hx-swap-oob="true" class="n">0<', html)
    assert "Recorded: it happened." in text_of(response)


# C24, C62
@pytest.mark.parametrize("headers", [{}, HTMX], ids=["page", "fragment"])
@pytest.mark.parametrize("step", ["review", "record"])
def test_a_world_that_moved_answers_with_who_and_what_and_keeps_the_remark(
    stage: Scene, operator: Client, headers: dict[str, str], step: str
) -> None:
    operation_id = stage.unknown()
    seen = stage.version(operation_id)
    until = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M")
    assert decide(browser(stage.second), stage, operation_id, "wait", wait_until=until).status_code == 302
    before = everything(stage)
    response = decide(
        operator,
        stage,
        operation_id,
        "happened",
        references="re_9",
        version=seen,
        stage=step,
        headers=headers,
    )
    said, html = text_of(response), response.content.decode()
    assert response.status_code == 409
    assert "This case has moved since your page was made" in said
    assert f"{stage.second.email}: wait until" in said
    assert f'<a href="/operations/{operation_id}#decision" target="_blank">look again' in html
    assert re.search(r'wait until.*?<time datetime="', html, re.DOTALL)
    assert REMARK in said
    assert everything(stage) == before
    assert f'name="version" value="{stage.version(operation_id)}"' in html
    again = decide(operator, stage, operation_id, "happened", references="re_9")
    assert again.status_code == 302


def test_a_case_that_was_closed_meanwhile_keeps_the_words_that_came_too_late(
    stage: Scene, operator: Client
) -> None:
    operation_id = stage.unknown()
    seen = stage.version(operation_id)
    stage.asked(operation_id, found(effect("re_51")))
    for step in ("review", "record"):
        response = decide(operator, stage, operation_id, "abandoned", version=seen, stage=step, headers=HTMX)
        said = text_of(response)
        assert response.status_code == 409
        assert "settled as completed" in said
        assert REMARK in said
    assert stage.workspace.facts(operation_id).state is State.COMPLETED


def test_two_people_give_an_outcome_up(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown("certificate.send", arguments={"user_id": "u", "amount": 1})
    response = decide(operator, stage, operation_id, "abandoned", headers=HTMX)
    said = text_of(response)
    assert "Proposed. It takes effect once a second person confirms it." in said
    assert "You proposed it, so somebody else confirms." in said
    assert stage.workspace.facts(operation_id).standing == "none"

    def confirm(client: Client, **fields: Any) -> Any:
        given = {"version": stage.version(operation_id), "remark": REMARK} | fields
        return client.post(f"/operations/{operation_id}/confirmation", given, headers=HTMX)

    own = confirm(operator)
    assert own.status_code == 422
    assert "you proposed this decision yourself" in text_of(own)
    second = browser(stage.second)
    shown = second.get(f"/operations/{operation_id}").content.decode()
    assert "Confirm as second person" in shown
    assert confirm(second, version=1).status_code == 409
    assert confirm(second, remark="").status_code == 422
    assert "Confirmed, and in effect." in text_of(confirm(second))
    assert stage.workspace.facts(operation_id).standing == "abandoned"
    said = text_of(operator.get(f"/operations/{operation_id}"))
    assert "Abandoned, outcome unknown" in said
    assert "Did it happen? Stays unknown" in said


def test_a_duplicate_is_settled_and_keeps_its_flag(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown()
    stage.asked(operation_id, DUPLICATED)
    assert (
        decide(operator, stage, operation_id, "duplicate", references="re_51Qx8b\nre_51Qz4c").status_code
        == 302
    )
    said = text_of(operator.get(f"/operations/{operation_id}"))
    assert "Flag more than one effect" in said
    assert "Did it happen? Yes, more than once" in said
    assert "Completed more than one effect" in text_of(operator.get("/operations"))
    assert "Discrepancy settled" in said


def test_claiming_noting_and_asking_are_told_in_the_timeline(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown()
    for action, fields, says in (
        ("claim", {}, "The case is yours."),
        ("note", {"remark": "Called them: closed until Monday."}, "Noted."),
        ("ask", {}, "The receiver is asked with the next sweep."),
        ("claim", {"release": "1"}, "Nobody owns the case now."),
    ):
        response = operator.post(f"/operations/{operation_id}/{action}", fields, headers=HTMX)
        assert response.status_code == 200, action
        assert says in text_of(response)
    said = text_of(operator.get(f"/operations/{operation_id}"))
    for line in (
        "Case claimed",
        "Called them: closed until Monday.",
        "Asked for another look-up",
        "Case released",
    ):
        assert line in said


def test_an_empty_note_is_refused(stage: Scene, operator: Client) -> None:
    response = operator.post(f"/operations/{stage.unknown()}/note", {"remark": "  "}, headers=HTMX)
    assert response.status_code == 422


def test_a_receiver_that_cannot_be_asked_is_not_asked(stage: Scene, operator: Client) -> None:
    operation_id = stage.unknown("certificate.send", arguments={"user_id": "u", "amount": 1})
    assert (
        f"/operations/{operation_id}/ask" not in operator.get(f"/operations/{operation_id}").content.decode()
    )
    response = operator.post(f"/operations/{operation_id}/ask", headers=HTMX)
    assert response.status_code == 409
    assert "The receiver cannot be asked about this." in text_of(response)
