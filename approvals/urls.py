"""Pages where people decide on bound operations."""

from __future__ import annotations

from django.urls.resolvers import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []
