"""Read-only pages of the record."""

from __future__ import annotations

from django.urls import path
from django.urls.resolvers import URLPattern, URLResolver

from ledger import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.home, name="home"),
    path("operations", views.operations, name="operations"),
    path("workspace", views.workspace, name="workspace"),
]
