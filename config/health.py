"""Whether this process can do its work, asked by machines."""

from __future__ import annotations

from functools import cache

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@cache
def _shipped() -> frozenset[tuple[str, str]]:
    """Every migration of the installed code as (app, name)."""
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).disk_migrations)


def _applied() -> set[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT app, name FROM django_migrations")
        return set(cursor.fetchall())


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 when the database answers and holds every migration of this code, else 503 with the reason.

    Shape: {"status": "ok"} or {"status": "unavailable", "why": "…"}.
    """
    try:
        try:
            applied = _applied()
        except DatabaseError:
            connection.close()  # a restarted server leaves a dead connection behind: one more try on a new one
            applied = _applied()
    except DatabaseError as error:
        connection.close()
        return JsonResponse({"status": "unavailable", "why": f"database: {type(error).__name__}"}, status=503)
    missing = len(_shipped() - applied)
    if missing:
        return JsonResponse({"status": "unavailable", "why": f"{missing} migrations to apply"}, status=503)
    return JsonResponse({"status": "ok"})
