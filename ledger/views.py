"""Read-only pages of the record: the way in, the newest operations, and which workspace is looked at."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from ledger import selectors
from ledger.access import CHOSEN, MemberRequest, member_page, reading
from ledger.intake import valid_name

SEARCH_MAX = 200  # characters of an operation ID


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The queue is what people come for."""
    return redirect("unknowns")


@require_safe
@member_page
def operations(request: MemberRequest) -> HttpResponse:
    """The newest operations of the workspace; ``q`` is the beginning of an operation ID, ``after`` a place in the list.

    A whole operation ID leads straight to its page.
    """
    asked = request.GET.get("q", "").strip()[:SEARCH_MAX]
    starting_with = asked if valid_name(asked) else ""
    after = _place(request.GET.get("after", ""))
    with reading(request.member):
        if asked and not starting_with:  # no operation ID may hold such characters
            page = selectors.OperationsPage((), None)
        else:
            page = selectors.operations_page(
                request.member.workspace_id, starting_with=starting_with, after=after
            )
        if starting_with and [one.facts.operation_id for one in page.operations] == [starting_with]:
            return redirect("operation", starting_with)
        context = {"section": "operations", "page": page, "asked": asked, "after": after}
        return render(request, "ledger/operations.html", context)


def _place(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


@require_POST
@member_page
def workspace(request: MemberRequest) -> HttpResponseBase:
    """Looks into another workspace of one's own from here on; any other name changes nothing."""
    chosen = request.POST.get("workspace", "")
    if chosen in {str(choice.id) for choice in request.member.choices}:
        request.session[CHOSEN] = int(chosen)
    return redirect("unknowns")
