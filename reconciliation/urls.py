"""Pages where people settle what is unknown."""

from __future__ import annotations

from django.urls import path
from django.urls.resolvers import URLPattern, URLResolver

from reconciliation import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("unknowns", views.unknowns, name="unknowns"),
    path("operations/<str:operation_id>", views.operation, name="operation"),
    path("operations/<str:operation_id>/moved", views.moved, name="moved"),
    path("operations/<str:operation_id>/decision", views.decision, name="decision"),
    path("operations/<str:operation_id>/claim", views.claim, name="claim"),
    path("operations/<str:operation_id>/ask", views.ask, name="ask"),
    path("operations/<str:operation_id>/note", views.note, name="note"),
    path("operations/<str:operation_id>/confirmation", views.confirmation, name="confirmation"),
]
