"""The console as people meet it: real server, real browser, by hand, by keyboard and without scripts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from ledger.states import State
from tests.browser.conftest import NARROWEST, PHONE, WIDE
from tests.browser.scenes import DUPLICATED, NOTHING_FOUND, PASSWORD, Scene, effect, found, scene

REMARK = "Saw it in the receiver's dashboard, 14:20."


@pytest.fixture
def stage(record: None) -> Scene:
    """A workspace of the test's own, with people who can sign in."""
    return scene(password=PASSWORD)


# How it looks.


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_every_page_is_accessible_and_fits(visit: Any, acme: Any, width: int, scheme: str) -> None:
    made, names = acme
    addresses = {
        "unknowns": "/unknowns",
        "discrepancies": "/unknowns?tab=discrepancies",
        "reconciling": "/unknowns?tab=reconciling",
        "all-clear": "/unknowns?tab=callback",
        "resolved": "/unknowns?tab=resolved",
        "operations": "/operations",
        "no-match": "/operations?q=none",
        "not-found": "/operations/none",
        **{f"operation-{what}": f"/operations/{name}" for what, name in names.items()},
        "decision": f"/operations/{names['lost']}/decision",
        "account": "/accounts/2fa/",
        "password": "/accounts/password/change/",
        "sign-out": "/accounts/logout/",
    }
    with visit(width=width, scheme=scheme) as visitor:
        visitor.go("/accounts/login/")
        visitor.keep(f"sign-in-{width}-{scheme}")
        visitor.check_accessible()
        visitor.sign_in(made.operator)
        for name, address in addresses.items():
            visitor.go(address)
            visitor.keep(f"{name}-{width}-{scheme}")
            visitor.check_fits()
            visitor.check_accessible()


def test_the_narrowest_screen_needs_no_sideways_scrolling(visit: Any, acme: Any) -> None:
    made, names = acme
    with visit(width=NARROWEST) as visitor:
        visitor.sign_in(made.operator)
        for address in ("/unknowns", "/operations", *(f"/operations/{name}" for name in names.values())):
            visitor.go(address)
            visitor.check_fits()


def test_a_case_prints_without_its_controls(visit: Any, acme: Any) -> None:
    made, names = acme
    with visit() as visitor:
        visitor.sign_in(made.operator)
        visitor.go(f"/operations/{names['lost']}")
        visitor.page.emulate_media(media="print")
        visitor.keep("print")
        expect(visitor.page.get_by_role("heading", name="Timeline")).to_be_visible()
        expect(visitor.page.locator(".decision")).to_be_hidden()
        expect(visitor.page.locator(".nav")).to_be_hidden()


# What people do.


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_an_operator_settles_an_unknown(visit: Any, stage: Scene, width: int) -> None:
    operation_id = stage.unknown("certificate.send", arguments={"user_id": "mia", "amount": 250})
    with visit(width=width) as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        expect(page).to_have_title(re.compile(r"^\(1\) Unknowns"))
        page.get_by_role("link", name="Send certificate 250 to mia").click()
        expect(page.get_by_role("radio", checked=True)).to_have_count(0)
        page.get_by_text("It happened", exact=True).click()
        expect(page.get_by_text("the agent resumes with this reference")).to_be_visible()
        expect(page.locator("#id_wait_until")).to_be_hidden()
        page.get_by_role("button", name="Review the decision").click()
        expect(page.get_by_text("Say why, in 10 characters or more.")).to_be_visible()
        expect(page.get_by_text("Give the receiver's own reference")).to_be_visible()
        visitor.keep(f"decision-missing-{width}")
        visitor.check_accessible()
        page.get_by_label("Why, in your words").fill(REMARK)
        page.get_by_label("Receiver's reference").fill("cert_77")
        page.get_by_role("button", name="Review the decision").click()
        expect(page.get_by_role("heading", name="Review the decision")).to_be_visible()
        visitor.keep(f"decision-review-{width}")
        visitor.check_accessible()
        assert stage.workspace.facts(operation_id).state is State.UNKNOWN
        page.get_by_role("button", name="Record this decision").click()
        expect(page.get_by_text("Recorded: it happened.")).to_be_focused()
        expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
        visitor.keep(f"decided-{width}")
        visitor.check_accessible()
        assert stage.workspace.facts(operation_id).state is State.COMPLETED
        page.get_by_role("link", name="Unknowns").click()
        expect(
            page.get_by_text("All clear: nobody is needed").or_(page.get_by_text("as far as anybody knows"))
        ).to_be_visible()
        expect(page).to_have_title(re.compile(r"^Unknowns"))


def test_an_operator_settles_an_unknown_without_scripts(visit: Any, stage: Scene) -> None:
    operation_id = stage.unknown("certificate.send", arguments={"user_id": "mia", "amount": 250})
    with visit(scripts=False) as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        page.get_by_role("link", name="Send certificate 250 to mia").click()
        page.get_by_role("button", name="Claim").click()
        expect(page.get_by_text("The case is yours.")).to_be_visible()
        page.get_by_text("It happened", exact=True).click()
        page.get_by_label("Why, in your words").fill(REMARK)
        page.get_by_role("button", name="Review the decision").click()
        expect(page.get_by_text("Give the receiver's own reference")).to_be_visible()
        page.get_by_label("Receiver's reference").fill("cert_77")
        page.get_by_role("button", name="Review the decision").click()
        page.get_by_role("button", name="Change it").click()
        expect(page.get_by_label("Why, in your words")).to_have_value(REMARK)
        page.get_by_role("button", name="Review the decision").click()
        visitor.keep("review-without-scripts")
        page.get_by_role("button", name="Record this decision").click()
        page.wait_for_url(f"**/operations/{operation_id}")
        expect(page.get_by_text("Recorded: it happened.")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/accounts/login/**")


# C24, C62
def test_a_decision_taken_on_an_old_page_keeps_its_remark(visit: Any, stage: Scene) -> None:
    operation_id = stage.unknown()
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        visitor.go(f"/operations/{operation_id}")
        page.get_by_text("It happened", exact=True).click()
        page.get_by_label("Why, in your words").fill(REMARK)
        page.get_by_label("Receiver's reference").fill("re_9")
        page.get_by_role("button", name="Review the decision").click()
        expect(page.get_by_role("button", name="Record this decision")).to_be_visible()
        stage.asked(operation_id, DUPLICATED)
        page.get_by_role("button", name="Record this decision").click()
        expect(page.get_by_text("This case has moved since your page was made")).to_be_visible()
        expect(page.get_by_text("handed to a person: more than one effect")).to_be_visible()
        expect(page.get_by_text("More than once, it seems")).to_be_visible()
        expect(page.get_by_label("Why, in your words")).to_have_value(REMARK)
        visitor.keep("decision-moved")
        visitor.check_accessible()


def test_two_people_give_an_outcome_up(visit: Any, stage: Scene) -> None:
    operation_id = stage.unknown("certificate.send", arguments={"user_id": "mia", "amount": 250})
    with visit() as first, visit() as second:
        first.sign_in(stage.operator)
        first.go(f"/operations/{operation_id}")
        first.page.get_by_text("Stop: the outcome stays unknown").click()
        first.page.get_by_label("Why, in your words").fill("Nobody at the mailer can say.")
        first.page.get_by_role("button", name="Review the decision").click()
        first.page.get_by_role("button", name="Propose this decision").click()
        expect(first.page.get_by_text("You proposed it, so somebody else confirms.")).to_be_visible()
        second.sign_in(stage.second)
        second.go(f"/operations/{operation_id}")
        second.page.get_by_label("Why you agree").fill("Asked them as well, no answer.")
        second.keep("second-person")
        second.check_accessible()
        second.page.get_by_role("button", name="Confirm as second person").click()
        expect(second.page.get_by_text("Confirmed, and in effect.")).to_be_visible()
        expect(second.page.get_by_text("Stays unknown", exact=True)).to_be_visible()
        second.keep("abandoned")
        second.check_accessible()


def test_a_viewer_reads_and_has_nothing_to_press(visit: Any, acme: Any) -> None:
    made, names = acme
    with visit() as visitor:
        visitor.sign_in(made.viewer)
        visitor.go(f"/operations/{names['lost']}")
        visitor.keep("viewer")
        visitor.check_accessible()
        expect(visitor.page.get_by_role("radio")).to_have_count(0)
        expect(visitor.page.get_by_role("button", name=re.compile("Claim|Check again|Review"))).to_have_count(
            0
        )
        expect(visitor.page.get_by_text("Deciding takes the role operator")).to_be_visible()


def test_a_session_that_ended_keeps_what_was_written(visit: Any, stage: Scene) -> None:
    operation_id = stage.unknown()
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        visitor.go(f"/operations/{operation_id}")
        page.get_by_text("It happened", exact=True).click()
        page.get_by_label("Why, in your words").fill(REMARK)
        page.context.clear_cookies(name="sessionid")
        page.get_by_role("button", name="Review the decision").click()
        expect(page.get_by_text("You have been signed out.")).to_be_visible()
        expect(page.get_by_label("Why, in your words")).to_have_value(REMARK)


def test_a_second_factor_can_be_turned_on(visit: Any, stage: Scene) -> None:
    with visit(width=PHONE) as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        page.get_by_role("link", name="Account").click()
        page.get_by_role("link", name="Activate").click()
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("img", name="The secret as a QR code")).to_be_visible()
        visitor.keep("second-factor")
        visitor.check_fits()
        visitor.check_accessible()
        page.get_by_label("Authenticator code").fill("000000")
        page.get_by_role("button", name="Turn it on").click()
        expect(page.get_by_text("Incorrect code")).to_be_visible()


# C61
@pytest.mark.parametrize("answer", [500, 404, None], ids=["500", "404", "no answer"])
def test_a_decision_without_an_answer_is_not_called_recorded(
    visit: Any, stage: Scene, answer: int | None
) -> None:
    operation_id = stage.unknown()
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        visitor.go(f"/operations/{operation_id}")
        page.get_by_text("It happened", exact=True).click()
        page.get_by_label("Why, in your words").fill(REMARK)

        def fail(route: Any) -> None:
            if answer is None:
                route.abort()
            else:
                route.fulfill(
                    status=answer, content_type="text/html", body="<!doctype html><h1>Whole page</h1>"
                )

        page.route("**/decision", fail)
        page.get_by_role("button", name="Review the decision").click()
        expect(page.get_by_text("it is not known whether this was recorded")).to_be_visible()
        expect(page.get_by_role("link", name="look at the operation as it is now")).to_be_visible()
        expect(page.get_by_label("Why, in your words")).to_have_value(REMARK)
        expect(page.get_by_text("Whole page")).to_have_count(0)
        expect(page.get_by_role("button", name="Review the decision")).to_be_enabled()
        visitor.complaints.clear()  # the browser's own lines about the answer that never came


# C67
def test_signing_in_anew_elsewhere_keeps_what_was_written(visit: Any, stage: Scene) -> None:
    operation_id = stage.unknown()
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        visitor.go(f"/operations/{operation_id}")
        page.get_by_text("It happened", exact=True).click()
        page.get_by_label("Why, in your words").fill(REMARK)
        page.context.clear_cookies()
        visitor.page = page.context.new_page()
        visitor.sign_in(stage.second)
        page.get_by_role("button", name="Review the decision").click()
        expect(page.get_by_text("Your session has changed since this page was made")).to_be_visible()
        expect(page.get_by_label("Why, in your words")).to_have_value(REMARK)


# The live queue.


def test_new_cases_come_by_themselves(visit: Any, stage: Scene) -> None:
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        expect(page.get_by_text("Nothing has been recorded yet")).to_be_visible()
        visitor.keep("nothing-yet")
        visitor.check_accessible()
        stage.unknown("certificate.send", arguments={"user_id": "mia", "amount": 250})
        expect(page.get_by_role("link", name="Send certificate 250 to mia")).to_be_visible()
        expect(page).to_have_title(re.compile(r"^\(1\) Unknowns"))
        expect(page.locator("#nav-unknowns")).to_contain_text("1")


def test_nothing_moves_under_the_cursor(visit: Any, stage: Scene) -> None:
    stage.unknown("certificate.send", arguments={"user_id": "mia", "amount": 250})
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        page.get_by_role("link", name="Send certificate 250 to mia").hover()
        stage.unknown("certificate.send", arguments={"user_id": "raj", "amount": 10})
        expect(page.get_by_role("button", name="1 new: show")).to_be_visible()
        expect(page.get_by_role("link", name="Send certificate 10 to raj")).to_have_count(0)
        page.get_by_role("button", name="1 new: show").click()
        expect(page.get_by_role("link", name="Send certificate 10 to raj")).to_be_visible()


def test_the_queue_can_be_paused(visit: Any, stage: Scene) -> None:
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        page.get_by_role("button", name="Pause live").click()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(4_000)
        assert asked == []
        page.get_by_role("button", name="Resume live").click()
        with page.expect_request("**/unknowns?*"):
            pass


# The keyboard.


def test_the_queue_is_walked_by_keys(visit: Any, stage: Scene) -> None:
    for name in ("mia", "raj", "zoe"):
        stage.unknown("certificate.send", arguments={"user_id": name, "amount": 5})
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        page.keyboard.press("j")
        expect(page.get_by_role("link", name="Send certificate 5 to mia")).to_be_focused()
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        expect(page.get_by_role("link", name="Send certificate 5 to raj")).to_be_focused()
        visitor.keep("keyboard")
        page.keyboard.press("Enter")
        page.wait_for_url("**/operations/*")
        page.keyboard.press("d")
        expect(page.get_by_role("radio").first).to_be_focused()
        expect(page.get_by_role("radio", checked=True)).to_have_count(0)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        visitor.keep("keys")
        visitor.check_accessible()
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.wait_for_url("**/operations")
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox")).to_be_focused()
        page.keyboard.type("jjd?")  # a key in a field is text
        expect(page.get_by_role("searchbox")).to_have_value("jjd?")


def test_keys_can_be_switched_off(visit: Any, stage: Scene) -> None:
    stage.unknown()
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        page.keyboard.press("?")
        page.get_by_label("Keys are on").uncheck()
        page.get_by_role("button", name="Close").click()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_decision_is_made_by_keyboard_alone(visit: Any, stage: Scene) -> None:
    operation_id = stage.unknown("certificate.send", arguments={"user_id": "mia", "amount": 5})
    stage.workspace.facts(operation_id)
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/operations/*")
        page.keyboard.press("d")
        page.keyboard.press("Space")
        page.keyboard.press("Tab")
        page.keyboard.type(REMARK)
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.type("cert_1")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Review the decision")).to_be_visible()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Recorded: it happened.")).to_be_focused()


# What the receiver says arrives.


def test_a_page_says_that_it_has_been_overtaken(visit: Any, stage: Scene) -> None:
    operation_id = stage.unknown()
    stage.asked(operation_id, NOTHING_FOUND)
    with visit() as visitor:
        page = visitor.page
        visitor.sign_in(stage.operator)
        visitor.go(f"/operations/{operation_id}")
        stage.asked(operation_id, found(effect("re_51Qx8b")))
        page.get_by_role("link", name="Show it as it is now").click()
        expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
