"""Reconcile, escalate and callbacks."""

from __future__ import annotations

from django.urls import path

from reconciliation.api import views

urlpatterns = [
    path("api/v1/operations/<str:operation_id>/reconcile", views.ReconcileView.as_view()),
]
