"""Read-only pages of the record."""

from __future__ import annotations

from django.urls.resolvers import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []
