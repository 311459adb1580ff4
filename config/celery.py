"""Worker and beat. ``celery -A config.celery worker`` · ``celery -A config.celery beat``."""

from __future__ import annotations

import os
import warnings

from celery import Celery
from celery.exceptions import SecurityWarning
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Transport as RedisTransport
from redis.exceptions import ResponseError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

# Celery warns at each start as root, because pickled messages could run code; only JSON is accepted here.
warnings.filterwarnings("ignore", category=SecurityWarning)


class Transport(RedisTransport):
    """A broker that has failed over, or is a replica now, refuses commands: a reason to connect anew, as to one that is
    away. Celery would take it for the worker's end."""

    connection_errors = (*RedisTransport.connection_errors, ResponseError)


TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))

app = Celery("counterfoil")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
