"""Reconcile, escalate and callbacks."""

from __future__ import annotations

from django.urls.resolvers import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []
