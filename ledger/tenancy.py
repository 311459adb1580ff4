"""The second wall, opened for one workspace at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def workspace(workspace_id: int) -> Iterator[None]:
    """A transaction in which the rows of one workspace are visible, and no others."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('counterfoil.workspace', %s, true)", [str(workspace_id)])
        yield
