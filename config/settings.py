"""Django's settings, read from the environment (config/environment.py has the table) and loud about mistakes."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from config import environment
from config.environment import BadSetting, read, read_choice, read_count, read_flag

BASE_DIR = environment.ROOT


def _session_secret(folder: Path) -> str:
    """The secret that signs sessions: made once, by whichever process comes first, then read by all."""
    path = folder / "session"
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".session.{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(64))
        try:
            os.link(draft, path)  # fails when another process was first: its secret stands
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    secret = path.read_text().strip()
    if len(secret) < 50:
        raise ImproperlyConfigured(f"{path} is damaged: remove it (everyone signs in again) or restore it.")
    return secret


def _database(url: str, role: str) -> dict[str, Any]:
    """DATABASE_URL as Django wants it; without one an engine that refuses every query."""
    if not url:
        return {"ENGINE": "django.db.backends.dummy"}
    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    host = options.pop("host", parts.hostname or "")
    if parts.scheme not in ("postgresql", "postgres") or len(parts.path) < 2:
        raise ImproperlyConfigured("DATABASE_URL must look like postgresql://user:password@host:5432/name.")
    # A server that does not answer is noticed after this many seconds, before a client's own patience ends.
    options.setdefault("connect_timeout", "5")
    answer_within_s = float(options.pop("answer_within_s", 17))
    if role != "owner":
        options["assume_role"] = role
        # No request waits longer than its caller: a lock held elsewhere, or a statement gone astray, is answered with
        # `unavailable`. And no process that froze, or whose machine did, keeps its locks: its session is ended.
        # Migrations, which act as the owner, may take their time.
        options.setdefault(
            "options",
            "-c lock_timeout=5s -c statement_timeout=15s -c idle_in_transaction_session_timeout=15s",
        )
        # Longer than the server's own timeouts: it says itself what took too long, as long as it says anything.
        options["answer_within_s"] = answer_within_s
    return {
        "ENGINE": "config.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or options.pop("port", "")),
        "CONN_MAX_AGE": None,  # a new connection per request costs nine times the request
        "ATOMIC_REQUESTS": False,  # services own their transactions
        "OPTIONS": options,
    }


try:
    DEBUG = read_flag("COUNTERFOIL_DEBUG")
    _PORT = read_count("PORT")
    _LOG_LEVEL = read_choice("COUNTERFOIL_LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR"))
    _LOG_FORMAT = read_choice("COUNTERFOIL_LOG_FORMAT", ("text", "json"))
    CELERY_WORKER_CONCURRENCY = read_count("WORKER_PROCESSES", high=64)
    _WEB_THREADS = read_count("WEB_THREADS", high=1024)
except BadSetting as bad:
    raise ImproperlyConfigured(str(bad)) from bad

# --- Where things are -------------------------------------------------------------------------------------------

DATA_FOLDER = environment.data_folder()
KEYS_FOLDER = environment.keys_folder()
ENVIRONMENT = read("COUNTERFOIL_ENVIRONMENT")
if not re.fullmatch(r"[a-z0-9]{1,16}", ENVIRONMENT):  # what a token has room for: ledger/tokens.py
    raise ImproperlyConfigured(
        "COUNTERFOIL_ENVIRONMENT may hold lower-case letters and digits only, 16 at most."
    )

BASE_URL = (read("COUNTERFOIL_BASE_URL") or f"http://localhost:{_PORT}").rstrip("/")
_BASE = urlsplit(BASE_URL)
if _BASE.scheme not in ("http", "https") or not _BASE.hostname or _BASE.path or _BASE.query:
    raise ImproperlyConfigured("COUNTERFOIL_BASE_URL must look like https://counterfoil.example.org.")
_HTTPS = _BASE.scheme == "https"
if DEBUG and _HTTPS:
    raise ImproperlyConfigured(
        "COUNTERFOIL_DEBUG shows secrets to every visitor: not together with an https address."
    )

DATABASE_ROLE = read("COUNTERFOIL_DB_ROLE")
DATABASES = {"default": _database(read("DATABASE_URL"), DATABASE_ROLE)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = read("REDIS_URL")
if REDIS_URL and urlsplit(REDIS_URL).scheme not in ("redis", "rediss"):
    raise ImproperlyConfigured("REDIS_URL must look like redis://:password@host:6379/0 (no unix socket).")

# --- Who may come in --------------------------------------------------------------------------------------------

SECRET_KEY = read("COUNTERFOIL_SECRET_KEY") or _session_secret(KEYS_FOLDER)
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", _BASE.hostname]
ALLOWED_HOSTS += [name.strip() for name in read("COUNTERFOIL_HOSTS").split(",") if name.strip()]
CSRF_TRUSTED_ORIGINS = [BASE_URL]

# With an https address a proxy in front ends TLS and must set this header itself, whatever a client sent.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _HTTPS else None
SECURE_SSL_REDIRECT = _HTTPS
SECURE_REDIRECT_EXEMPT = [r"^healthz$"]  # asked by machines on loopback
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if _HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = _HTTPS
SECURE_HSTS_PRELOAD = _HTTPS
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_SECURE = _HTTPS
CSRF_COOKIE_SECURE = _HTTPS
SESSION_COOKIE_AGE = 12 * 3600  # one shift
X_FRAME_OPTIONS = "DENY"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "manifest-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}

AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "config.accounts.MembersOnly"
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"  # members are provisioned with a verified address
ACCOUNT_SESSION_REMEMBER = False
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

# --- What runs --------------------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.admin",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "csp",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "ledger",
    "approvals",
    "reconciliation",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",  # before WhiteNoise, or static files would carry no policy
    "config.middleware.RuntimeDoor",  # the API goes straight to its view: no session, messages or login
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]

# What `provision` has to know of receivers. The ledger imports neither; here is where the two meet.
LEDGER_CHECKS = {
    "receiver": "reconciliation.reconcilers.http_lookup.validate_receiver",
    "reconciler": "reconciliation.reconcilers.base.validate",
}

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

TIME_ZONE = "UTC"
USE_TZ = True
LANGUAGE_CODE = "en-gb"
USE_I18N = False

# Files are served from where they are installed: no collecting step that a start could forget.
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

# Counters of sign-in attempts live in each web process: with n processes a guesser has n times the attempts.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# Forms of the console. The API caps its bodies by itself, since DRF reads the stream past these limits.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 1000
FILE_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
    "EXCEPTION_HANDLER": "ledger.api.views.problem_of",
}

SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Counterfoil",
    "DESCRIPTION": (
        "Record an intent, ask for a permit, report the outcome: one business intent, at most one effect.\n\n"
        "Every refusal is a problem (RFC 9457) whose `code` is explained in [the list of problems](/api/v1/problems):"
        " when it occurs, and what to do. Addresses that are not listed here answer `not-found`, other methods"
        " `method-not-allowed`."
    ),
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "defaultModelsExpandDepth": 0},
    "DEFAULT_GENERATOR_CLASS": "ledger.api.schema.Generator",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,  # the values are words already
    "ENUM_NAME_OVERRIDES": {
        "State": "ledger.states.State",
        "AttemptState": "ledger.states.AttemptState",
        "Standing": "ledger.states.Standing",
        "Action": "ledger.decisions.Action",
        "DecisionReason": "ledger.decisions.Reason",
        "DenialClass": "ledger.decisions.DenialClass",
        "Permission": "ledger.decisions.Permission",
        "PermissionReason": "ledger.permissions.PermissionReason",
        "Lookup": "ledger.contracts.Lookup",
        "Claim": "ledger.reports.Claim",
        "SettledOutcome": ["completed", "denied"],
        "YesNoUnknown": ["yes", "no", "unknown"],
    },
}

# --- Jobs: a message only says "look at the rows"; losing one loses nothing, the next sweep finds them ------------

# Unset, the name says what is missing in every connection error, instead of finding a stranger's broker.
CELERY_BROKER_URL = REDIS_URL or "redis://redis-url-is-not-set.invalid:6379/0"
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
# Acknowledged when taken. Late acknowledgement brings a lost job back only after ten times the visibility timeout;
# the sweep comes every two seconds.
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_TIME_LIMIT = 120
CELERY_TASK_SOFT_TIME_LIMIT = 90
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A broker that is away for hours is waited for: a hundred tries, the default, end a worker within the hour.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Without these a frozen broker is waited for without end.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 5,
    "visibility_timeout": 600,
}
CELERY_TASK_PUBLISH_RETRY = False  # with retries one publish blocks for 25 s on a frozen broker
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
SWEEP_EVERY_S = 2
# One look-up from the inside out. Each clock must outlast the one before it, and the broker's visibility timeout all of
# them (reconciliation/clocks.py refuses to start otherwise). A killed worker's look-up is made again after the lease.
RECEIVER_TIMEOUT_S = 10
LOOKUP_SOFT_LIMIT_S = 20
LOOKUP_HARD_LIMIT_S = 30
CASE_LEASE_S = 45
CELERY_BEAT_SCHEDULE = {"sweep": {"task": "reconciliation.tasks.sweep", "schedule": SWEEP_EVERY_S}}

# Calls of one web process that may take their time: a quarter of its threads wait for an operation, a quarter ask a
# receiver, and the other half answers permits.
LONG_CALLS_MAX = max(1, _WEB_THREADS // 4)

# --- What is said: one line per event on standard error ---------------------------------------------------------

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"()": "config.logs.TextLine"},
        "json": {"()": "config.logs.JSONLine"},
    },
    "filters": {"incidents": {"()": "config.logs.Incidents"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": _LOG_FORMAT}},
    "root": {"handlers": ["stderr"], "level": _LOG_LEVEL},
    "loggers": {
        "django": {"level": _LOG_LEVEL, "handlers": [], "propagate": True},
        "django.server": {"level": _LOG_LEVEL, "handlers": [], "propagate": True},
        "django.request": {"filters": ["incidents"]},
        "celery.beat": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
    },
}
