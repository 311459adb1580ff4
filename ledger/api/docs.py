"""The OpenAPI document, served and rendered, and the page of problems."""

from __future__ import annotations

from functools import cache, wraps
from itertools import groupby
from typing import Any

import orjson
from csp.decorators import csp_update
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework import exceptions
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request

from ledger import errors
from ledger.api.explained import explained
from ledger.api.problems import View, answers_problems
from ledger.api.schema import Generator, codes_of


def _unstored(view: View[Any]) -> View[Any]:
    """The answer describes this version: nothing keeps it."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        response = view(request, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    return answer


class Willing(DefaultContentNegotiation):
    """What the query names, else what the caller would rather have, else the first: all of it can be read."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        asked = request.query_params.get("format")
        for renderer in renderers:
            if renderer.format == asked:
                return renderer, renderer.media_type
        try:
            return super().select_renderer(request, renderers, format_suffix)
        except (Http404, exceptions.NotAcceptable):
            return renderers[0], renderers[0].media_type


class SchemaView(SpectacularAPIView):
    """GET /api/v1/schema: the document, as YAML or (?format=json) JSON."""

    authentication_classes = ()
    permission_classes = ()
    content_negotiation_class = Willing
    http_method_names = ("get", "head")

    def _get_version_parameter(self, request: Request) -> None:
        """There is one version: what the query says must not stand in the document or its headers."""


# Swagger draws with data: images; its page alone may.
@method_decorator(csp_update({"img-src": ["data:"]}), name="dispatch")
class DocsView(SpectacularSwaggerSplitView):
    """GET /api/v1/docs: the document as pages, everything from here."""

    template_name = "api/docs.html"
    url = "/api/v1/schema"
    authentication_classes = ()
    permission_classes = ()
    content_negotiation_class = Willing
    http_method_names = ("get", "head")


schema = _unstored(SchemaView.as_view())
docs = _unstored(DocsView.as_view())


@_unstored
@answers_problems()
def problems(request: HttpRequest) -> HttpResponse:
    """GET /api/v1/problems: every refusal with its way out. `type` in a problem links to its row."""
    if request.method not in ("GET", "HEAD"):
        raise errors.MethodNotAllowed(extra={"allow": ["GET", "HEAD"]})
    return HttpResponse(_problems_page())


@cache
def _problems_page() -> str:
    """The page says what the code says: made once per process."""
    calls = codes_of(Generator().get_schema(public=True))  # type: ignore[no-untyped-call]
    rows = [
        {
            "code": code,
            "calls": calls.get(code, ()),
            "refusals": [
                {
                    "status": one.refusal.status,
                    "title": _marked(one.refusal.title),
                    "when": _marked(one.when),
                    "way_out": _marked(one.refusal.way_out),
                    "fields": _fields(one.refusal),
                    "example": orjson.dumps(one.example, option=orjson.OPT_INDENT_2).decode(),
                }
                for one in same
            ],
        }
        for code, same in groupby(explained(), key=lambda one: one.refusal.code)
    ]
    return render_to_string("api/problems.html", {"rows": rows})


def _marked(text: str) -> SafeString:
    """What stands between back quotes as code."""
    pieces = enumerate(text.split("`"))
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", t) if n % 2 else t,) for n, t in pieces)
    )


_SPOKEN = {True: "true", False: "false", None: "as the record says"}


def _fields(refusal: type[errors.Refusal]) -> list[tuple[str, str]]:
    """The machine fields of this refusal; the record can make them more exact."""
    names = (
        "retryable",
        "repeat_request",
        "reuse_key",
        "reconciliation_required",
        "effect_may_have_happened",
    )
    return [(name, _SPOKEN[getattr(refusal, name)]) for name in names]
