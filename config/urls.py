"""Every address: pages of the three apps, the runtime API, sign-in, health."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from config.health import healthz
from ledger.api.urls import fallback

urlpatterns = [
    # The runtimes' calls first: addresses are tried in this order.
    path("", include("ledger.api.urls")),
    path("", include("reconciliation.api.urls")),
    path("healthz", healthz, name="healthz"),
    path("", include("ledger.urls")),
    path("", include("approvals.urls")),
    path("", include("reconciliation.urls")),
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    *fallback,
]
