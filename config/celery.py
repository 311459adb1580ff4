"""Worker and beat. ``celery -A config.celery worker`` · ``celery -A config.celery beat``."""

from __future__ import annotations

import os
import warnings

from celery import Celery
from celery.exceptions import SecurityWarning

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

# Celery warns at each start as root, because pickled messages could run code; only JSON is accepted here.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("counterfoil")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
