"""The runtime API of the record."""

from __future__ import annotations

from django.urls import path, re_path

from ledger.api import docs, operations, views

urlpatterns = [
    path("api/v1/operations:batch", views.BatchView.as_view()),
    path("api/v1/operations/<str:operation_id>", operations.operation),
    path("api/v1/operations/<str:operation_id>/attempts/<str:number>", operations.attempt),
    path("api/v1/operations/<str:operation_id>/attempts/<str:number>/outcome", operations.outcome),
    path("api/v1/operations/<str:operation_id>/withdrawal", views.WithdrawalView.as_view()),
    path("api/v1/tasks/<str:task_id>", views.TaskView.as_view()),
    path("api/v1/schema", docs.schema, name="schema"),
    path("api/v1/docs", docs.docs, name="docs"),
    path("api/v1/problems", docs.problems, name="problems"),
    path(".well-known/counterfoil-keys.json", views.public_keys),
]

# Placed last by the project: whatever else is asked below these two gets a typed answer.
fallback = [re_path(r"^(?:api|\.well-known)/", operations.not_found)]
