"""Pages where people settle what is unknown: the queue, one operation, the decision.

Each address serves the page and, to htmx, the part of it that changes, by the same template. Nothing is decided
here: the services refuse, and this file shows the refusal where the person is looking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from ledger import errors
from ledger import selectors as ledger
from ledger.access import MemberRequest, member_page, not_changed, reading
from ledger.states import Standing, State
from ledger.wording import (
    ATTEMPTS,
    FLAGS,
    LEAVES_MAX,
    SHOWN_MAX,
    STATE_SENTENCES,
    leaves,
    told_to_agent,
    words,
)
from reconciliation import selectors, services, wording
from reconciliation.circumstances import situation_of
from reconciliation.forms import ConfirmationForm, DecisionForm, RemarkForm
from reconciliation.resolutions import Kind, ResolutionRefused, faults, rule_for
from reconciliation.selectors import CasePage, Queue, QueueRow, Tab
from reconciliation.verdicts import VerdictReason

KEY_EXPIRES_SOON = timedelta(hours=4)
"""From here on the receiver may soon forget the key, and with it the cheapest way to find out."""

SWEEP_IS_LATE = timedelta(seconds=60)
"""Thirty sweeps missed: whoever reads "all clear" must know that nobody has looked."""

FRESH_FOR_S = 15
"""Ages on the queue may be that old before an unchanged list is sent again."""

TITLES = {
    Tab.NEEDS_PERSON: ("Needs a human", "nobody is needed"),
    Tab.RECONCILING: ("Being reconciled", "nothing is being reconciled"),
    Tab.CALLBACK: ("Waiting for callback", "nothing waits for a callback"),
    Tab.DISCREPANCIES: ("Discrepancies", "record and world agree"),
    Tab.SNOOZED: ("Snoozed", "nothing waits for a time"),
    Tab.RESOLVED: ("Resolved 7 d", "nothing was closed in seven days"),
}

ELSEWHERE = {
    Tab.NEEDS_PERSON: "under Needs a human.",
    Tab.DISCREPANCIES: "under Discrepancies: there record and world disagree.",
    Tab.RECONCILING: "being reconciled without you.",
    Tab.CALLBACK: "waiting for the receiver's callback.",
    Tab.SNOOZED: "snoozed: still unknown, until a time that somebody gave.",
}
"""What an empty tab says of the cases that are open under the others."""


# The queue.


@require_safe
@member_page
def unknowns(request: MemberRequest) -> HttpResponseBase:
    """One tab of the queue. ``tab`` and ``after`` make the address; an unknown one leads to the first page."""
    member = request.member
    if _is_of_another_workspace(request):
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    try:
        after = request.GET.get("after") or None
        queue = selectors.queue(member.workspace_id, request.GET.get("tab") or Tab.NEEDS_PERSON, after)
    except ValueError:
        return redirect("unknowns")
    waiting = queue.counts[Tab.NEEDS_PERSON] + queue.counts[Tab.DISCREPANCIES]
    here = {"tab": queue.tab.value, "of": str(member.workspace_id)} | ({"after": after} if after else {})
    context = {
        "section": "unknowns",
        "queue": queue,
        "rows": [_line(row, queue) for row in queue.rows],
        "tabs": [_tab(tab, queue) for tab in Tab],
        "title": TITLES[queue.tab][0],
        "waiting": waiting,
        "after": after,
        "here": f"{reverse('unknowns')}?{urlencode(here)}",
        "sweep_is_late": _sweep_is_late(queue),
        "etag": f'"{_tag_of(queue, request)}"',
        **_emptiness(request, queue, waiting, after),
    }
    template = "reconciliation/_queue.html" if _asks_for(request, "queue") else "reconciliation/unknowns.html"
    return not_changed(render(request, template, context), request, _tag_of(queue, request))


def _is_of_another_workspace(request: MemberRequest) -> bool:
    """A page asks for its own part again, and the session has gone to another workspace since (in another tab)."""
    of = request.GET.get("of")
    return of is not None and of != str(request.member.workspace_id)


def _asks_for(request: MemberRequest, part: str) -> bool:
    return bool(request.htmx) and request.htmx.target == part  # type: ignore[attr-defined]


def _tag_of(queue: Queue, request: MemberRequest) -> str:
    """Names what the page shows; ages that nobody changed let it stand for FRESH_FOR_S."""
    age = int(queue.now.timestamp()) // FRESH_FOR_S
    shown = repr((queue.tab, queue.rows, queue.next, queue.counts, sorted(request.member.roles), age))
    return hashlib.sha256(shown.encode()).hexdigest()[:32]


def _sweep_is_late(queue: Queue) -> bool:
    if queue.last_sweep_at is None:
        return any(queue.counts.values())
    return queue.now - queue.last_sweep_at > SWEEP_IS_LATE


def _tab(tab: Tab, queue: Queue) -> dict[str, Any]:
    count = queue.counts.get(tab)
    loud = tab in (Tab.NEEDS_PERSON, Tab.DISCREPANCIES) and bool(count)
    return {"name": tab.value, "title": TITLES[tab][0], "count": count, "loud": loud}


def _line(row: QueueRow, queue: Queue) -> dict[str, Any]:
    expires_soon = row.key_expires_at is not None and row.key_expires_at - queue.now <= KEY_EXPIRES_SOON
    why = wording.reason(row.why)
    because = wording.reason(row.escalation) if row.escalation else ""
    return {
        "row": row,
        "badge": wording.row_badge(row),
        "why": why,
        "because": because if because != why else "",
        "last_answer": wording.readable(row.last_answer) if row.last_asked_at else "",
        "unaskable": row.escalation == VerdictReason.OPERATOR_ONLY,
        "since": row.dispatched_at or row.opened_at,
        "owner": (row.owner or "").partition("@")[0],
        "expires_soon": expires_soon,
    }


def _emptiness(request: MemberRequest, queue: Queue, waiting: int, after: str | None) -> dict[str, Any]:
    """Which of the three kinds of nothing this is; nothing to say where there are rows."""
    if queue.rows:
        return {}
    if after is not None:
        return {"empty": "no_match"}
    with reading(request.member):
        recorded = ledger.anything_recorded(request.member.workspace_id)
    if not recorded and not any(queue.counts.values()) and queue.tab is Tab.NEEDS_PERSON:
        return {"empty": "nothing_yet"}
    return {
        "empty": "all_clear",
        "all_clear": not waiting,
        "nothing_here": TITLES[queue.tab][1],
        "elsewhere": " ".join(
            f"{queue.counts[tab]} {where}"
            for tab, where in ELSEWHERE.items()
            if tab is not queue.tab and queue.counts[tab]
        ),
    }


# One operation.


@require_safe
@member_page
def operation(request: MemberRequest, operation_id: str) -> HttpResponseBase:
    """Everything known of one operation, and the decision where a case is open."""
    page = _page(request, operation_id)
    return render(request, "reconciliation/operation.html", _context(request, page))


@require_safe
@member_page
def moved(request: MemberRequest, operation_id: str) -> HttpResponseBase:
    """Nothing (204) while the operation is at the ``seen`` mark of a page, else a line that says it has moved."""
    if _is_of_another_workspace(request):
        return render(request, "reconciliation/_moved.html", {"elsewhere": request.member.workspace.name})
    with reading(request.member):
        now = selectors.mark_of(request.member.workspace_id, operation_id)
    if now is None:
        raise Http404
    if now == request.GET.get("seen"):
        return HttpResponse(status=204)
    return render(request, "reconciliation/_moved.html", {"operation_id": operation_id})


def _page(request: MemberRequest, operation_id: str) -> CasePage:
    """Raises Http404 for every name that this workspace has never heard, whoever else may have."""
    page = selectors.case_page(request.member.workspace_id, operation_id)
    if page is None:
        raise Http404
    return page


def _context(request: MemberRequest, page: CasePage) -> dict[str, Any]:
    facts, case = page.facts, page.case
    is_open = case is not None and case.closed_at is None
    shown = list(
        islice(leaves(page.arguments, page.sensitive, everything=page.all_sensitive), LEAVES_MAX + 1)
    )
    seen = {"seen": page.mark, "of": str(request.member.workspace_id)}
    context: dict[str, Any] = {
        "section": "unknowns" if is_open else "operations",
        "page": page,
        "waiting": page.waiting,
        "badge": wording.page_badge(page),
        "may_act": request.member.operates and is_open,
        "mine": case is not None and case.owner_id == request.user.pk,
        "why": wording.reason(case.why) if case else "",
        "answers": wording.answers(page),
        "lookup_said": wording.readable(page.lookup.sentence) if page.lookup else "",
        "comparison": wording.comparison(page),
        "leaves": shown[:LEAVES_MAX],
        "leaves_left_out": len(shown) > LEAVES_MAX,
        "arguments_cut": any(len(leaf.text) > SHOWN_MAX for leaf in shown),
        "steps": wording.steps(page),
        "choices": wording.choices(page.offers),
        "form": DecisionForm(),
        "watched": f"{reverse('moved', args=[page.operation_id])}?{urlencode(seen)}",
    }
    if case is not None and case.proposal is not None:
        context["proposal_title"] = wording.CHOICES[case.proposal.kind][0]
        offered = next((one for one in page.offers if one.kind == case.proposal.kind), None)
        context["proposal_consequence"] = offered.consequence if offered else ""
    if facts is None:
        return context
    loud = facts.state is State.UNKNOWN or facts.standing is not Standing.NONE
    return context | {
        "loud_sentence": _loud_sentence(facts.state, facts.standing) if loud else "",
        "loud_tone": "clash" if facts.standing is Standing.DISCREPANCY else "loud",
        "agent_told": told_to_agent(facts.decision),
        "expires_soon": page.key_expires_at is not None
        and page.key_expires_at - page.now <= KEY_EXPIRES_SOON,
        "flags": [FLAGS.get(flag, words(flag)) for flag in facts.row["flags"]],
        "related": [(words(kind), names) for kind, names in page.related.items()],
        "attempts": [
            {
                "number": one.number,
                "state": one.at(page.now),
                "word": ATTEMPTS[one.at(page.now)],
                "fault": words(one.fault) if one.fault else "",
                "permitted_at": one.permitted_at,
                "lease_until": one.lease_until,
                "reported_at": one.reported_at,
            }
            for one in facts.attempts
        ],
    }


def _loud_sentence(state: State, standing: Standing) -> str:
    if standing is Standing.DISCREPANCY:
        return "Record and receiver disagree. Nobody may dispatch it until a person has settled this."
    if standing is Standing.ABANDONED:
        return (
            "Two people gave it up: whether the effect exists stays unknown, and nobody dispatches it again."
        )
    return STATE_SENTENCES[state]


# What people do.


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal as the page shows it. ``kept``: what was written is still in the form."""

    title: str
    lines: tuple[str, ...]
    status: int
    at: datetime | None = None
    kept: bool = False


def _refused(error: errors.Refusal | ResolutionRefused) -> Refused:
    match error:
        case errors.AlreadyDecided():
            by, what = (
                error.extra.get("changed_by") or "Somebody",
                error.extra.get("changed_what") or "changed it",
            )
            at = error.extra.get("changed_at")
            moment = None if at is None else datetime.fromisoformat(at)
            return Refused(
                "This case has moved since your page was made",
                (f"{by}: {wording.change(what)}",),
                409,
                moment,
                kept=True,
            )
        case errors.Forbidden():
            return Refused("Your roles do not allow that", (error.detail,), error.status)
        case errors.Refusal():
            return Refused(error.title, (error.detail,), error.status)
        case ResolutionRefused():
            lines = tuple(fault.why for fault in error.faults)
            return Refused("This cannot be recorded as it stands", lines, error.status)


@require_http_methods(["GET", "HEAD", "POST"])
@member_page
def decision(request: MemberRequest, operation_id: str) -> HttpResponseBase:
    """The decision form; by POST its review (``stage=review``), going back (``edit``) and the decision (``record``)."""
    if request.method != "POST":
        page = _page(request, operation_id)
        if page.case is None:
            raise Http404
        if request.GET.get("instead") and page.case.proposal is not None:
            page = _without_proposal(page)
        return _decision(request, page, DecisionForm())
    form = DecisionForm(request.POST)
    page = _page(request, operation_id)
    if page.case is None:
        raise Http404
    page = _without_proposal(page)  # whoever sends this form decides instead of confirming
    if not request.member.operates:
        return _decision(request, page, form, refused=_refused(errors.Forbidden(NOT_OPERATOR)))
    if elsewhere := _of_another_case(request, page):
        return _decision(request, page, form, refused=elsewhere, stage="elsewhere")
    stage = request.POST.get("stage", "review")
    if not form.is_valid():
        return _decision(request, page, form, status=422)
    if stage == "edit":
        return _decision(request, page, form)
    if stage == "record":
        return _record(request, page, form)
    return _review(request, page, form)


def _of_another_case(request: MemberRequest, page: CasePage) -> Refused | None:
    """Two workspaces may each have an operation of one name, and a session may have gone from the one to the other
    since its form was made: a form acts on the case it was made for, or on none."""
    sent = request.POST.get("case")
    if not sent or (page.case is not None and sent == str(page.case.id)):
        return None
    said = f"You look at the workspace {request.member.workspace.name}; this was written about another case."
    return Refused("Nothing was recorded", (said,), 409)


NOT_OPERATOR = "Only an operator of this workspace may do this."


def _without_proposal(page: CasePage) -> CasePage:
    assert page.case is not None
    return replace(page, case=replace(page.case, proposal=None))


def _review(request: MemberRequest, page: CasePage, form: DecisionForm) -> HttpResponseBase:
    """Shows what would be recorded, or what is missing; the service judges again when it is."""
    assert page.case is not None
    situation = situation_of(page.facts, page.now)
    rule = rule_for(Kind(form.cleaned_data["kind"]), situation)
    if page.case.closed_at is not None or page.case.version != form.cleaned_data["version"] or rule is None:
        return _decision(request, page, form, refused=_moved_under(page))
    found = faults(rule, situation, form.given)
    if found:
        form.show(found)
        return _decision(request, page, form, status=422)
    choice = next(one for one in wording.choices(page.offers) if one.kind == rule.kind)
    return _decision(request, page, form, stage="review", choice=choice, carried=form.carried())


def _moved_under(page: CasePage) -> Refused:
    case = page.case
    assert case is not None
    said = f"{case.changed_by or 'Somebody'}: {wording.change(case.changed_what or 'opened it')}"
    return Refused("This case has moved since your page was made", (said,), 409, case.changed_at, kept=True)


def _record(request: MemberRequest, page: CasePage, form: DecisionForm) -> HttpResponseBase:
    given = form.given
    try:
        resolved = services.resolve(
            request.member.workspace_id,
            page.operation_id,
            request.user,
            form.cleaned_data["kind"],
            version=form.cleaned_data["version"],
            remark=given.remark,
            evidence=given.evidence,
            references=given.references,
            wait_until=given.wait_until,
            compensated_by=given.compensated_by,
        )
    except ResolutionRefused as error:
        form.show(error.faults)
        return _decision(request, _again(request, page), form, status=error.status)
    except errors.Refusal as error:
        return _decision(request, _again(request, page), form, refused=_refused(error))
    now = _page(request, page.operation_id)
    if resolved.awaits_second_person:
        return _done(request, now, "Proposed. It takes effect once a second person confirms it.")
    return _done(request, now, f"Recorded: {wording.CHOICES[resolved.kind][0].lower()}.")


def _again(request: MemberRequest, page: CasePage) -> CasePage:
    """The page as the world is now: a new version goes out with the form, and must be confirmed anew."""
    return _without_proposal(_page(request, page.operation_id))


def _decision(
    request: MemberRequest,
    page: CasePage,
    form: Any,
    *,
    refused: Refused | None = None,
    status: int = 200,
    **extra: Any,
) -> HttpResponseBase:
    context = _context(request, page) | {"form": form, "refused": refused} | extra
    status = refused.status if refused else status
    if not request.htmx:  # type: ignore[attr-defined]
        return render(request, "reconciliation/decision.html", context, status=status)
    if refused is not None and refused.kept:  # the world moved: all of it is shown as it is now
        return _whole_case(request, context, status=status)
    return render(request, "reconciliation/_decision.html", context, status=status)


def _whole_case(request: MemberRequest, context: dict[str, Any], *, status: int = 200) -> HttpResponseBase:
    """For htmx: the operation in the place of the one on the screen, whatever part had asked."""
    response = render(request, "reconciliation/_case.html", context, status=status)
    response.headers["HX-Retarget"] = "#case"
    response.headers["HX-Reswap"] = "outerHTML"
    return response


def _done(request: MemberRequest, page: CasePage, said: str) -> HttpResponseBase:
    """The whole operation as it is now, with a line that the server has confirmed."""
    messages.success(request, said)
    if not request.htmx:  # type: ignore[attr-defined]
        return redirect("operation", page.operation_id)
    return _whole_case(request, _context(request, page))


@require_POST
@member_page
def confirmation(request: MemberRequest, operation_id: str) -> HttpResponseBase:
    """A second person's word on what another has proposed."""
    form = ConfirmationForm(request.POST)
    page = _page(request, operation_id)
    if page.case is None:
        raise Http404
    if elsewhere := _of_another_case(request, page):
        return _decision(request, page, form, refused=elsewhere, stage="elsewhere")
    if not form.is_valid():
        return _decision(request, page, form, status=422)
    try:
        services.confirm(
            request.member.workspace_id,
            operation_id,
            request.user,
            version=form.cleaned_data["version"],
            remark=form.cleaned_data["remark"],
        )
    except (ResolutionRefused, errors.Refusal) as error:
        return _decision(request, _page(request, operation_id), form, refused=_refused(error))
    return _done(request, _page(request, operation_id), "Confirmed, and in effect.")


@require_POST
@member_page
def claim(request: MemberRequest, operation_id: str) -> HttpResponseBase:
    """Puts the person's name on the case, or (``release``) takes the name off."""
    if request.POST.get("release"):
        return _act(request, operation_id, services.release_case, "Nobody owns the case now.")
    return _act(request, operation_id, services.claim_case, "The case is yours.")


@require_POST
@member_page
def ask(request: MemberRequest, operation_id: str) -> HttpResponseBase:
    """Has the receiver asked again, soon."""
    return _act(request, operation_id, services.ask_again, "The receiver is asked with the next sweep.")


@require_POST
@member_page
def note(request: MemberRequest, operation_id: str) -> HttpResponseBase:
    """Adds a note to the timeline."""
    form = RemarkForm(request.POST)
    text = form.cleaned_data["remark"] if form.is_valid() else ""

    def keep(workspace_id: int, name: str, user: Any) -> None:
        services.note(workspace_id, name, user, text)

    return _act(request, operation_id, keep, "Noted.")


def _act(
    request: MemberRequest, operation_id: str, service: Callable[[int, str, Any], None], said: str
) -> HttpResponseBase:
    refused = _of_another_case(request, _page(request, operation_id)) if request.POST.get("case") else None
    try:
        if refused is None:
            service(request.member.workspace_id, operation_id, request.user)
    except (ResolutionRefused, errors.Refusal) as error:
        refused = _refused(error)
    page = _page(request, operation_id)
    if refused is None:
        return _done(request, page, said)
    template = "reconciliation/_case.html" if request.htmx else "reconciliation/operation.html"  # type: ignore[attr-defined]
    return render(
        request, template, _context(request, page) | {"refused_act": refused}, status=refused.status
    )
