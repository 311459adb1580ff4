"""The door for runtimes: the API answers by token, so nothing that serves browsers runs in its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import resolve

RUNTIME_PREFIXES = ("/api/", "/.well-known/")


class RuntimeDoor:
    """Calls the view of a runtime's request directly; every other request goes on through the middleware below.

    Sessions, messages, CSRF and the login requirement are for people. A view under /api/ that a browser's session should
    open would find no user here, by design: a runtime's token is the only way in.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.for_people = get_response
        self.for_runtimes = convert_exception_to_response(_call_view)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if not request.path_info.startswith(RUNTIME_PREFIXES):
            return self.for_people(request)
        response = self.for_runtimes(request)
        # What CommonMiddleware does for pages; without it every answer would be sent in chunks.
        if isinstance(response, HttpResponse) and not response.has_header("Content-Length"):
            response.headers["Content-Length"] = str(len(response.content))
        return response


def _call_view(request: HttpRequest) -> HttpResponseBase:
    """What Django's own handler does once no middleware is left."""
    match = resolve(request.path_info)
    request.resolver_match = match
    response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
    if isinstance(response, HttpResponse) and callable(getattr(response, "render", None)):
        response = response.render()  # type: ignore[attr-defined]
    return response
