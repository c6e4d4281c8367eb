"""Django settings, all from environment variables (docs/configuration.md lists them)."""

import importlib.util
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ledger.config.environment import (
    database_from_url,
    email_from_url,
    env_flag,
    env_integer,
    env_list,
    env_pairs,
    env_text,
    stored_secret,
)

BASE_DIR = Path(__file__).resolve().parent.parent.parent
VAR_DIR = Path(env_text("LEDGER_VAR") or BASE_DIR / "var").absolute()

# --- Security ---------------------------------------------------------------------------------------

DEBUG = env_flag("LEDGER_DEBUG", False)
# Debug said to be off means production. Left unsaid, this is somebody's own machine: the key is then a
# random one kept in var/, so that nothing has to be configured and nothing guessable signs a session.
IS_PRODUCTION = not DEBUG and env_text("LEDGER_DEBUG") != ""
SECRET_KEY = env_text("LEDGER_SECRET_KEY")
if not SECRET_KEY:
    if IS_PRODUCTION:
        raise ImproperlyConfigured(
            "LEDGER_SECRET_KEY is not set and debug is off: set it to a long random text."
        )
    SECRET_KEY = stored_secret(VAR_DIR / "secret_key")

ALLOWED_HOSTS = env_list("LEDGER_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env_list("LEDGER_CSRF_TRUSTED_ORIGINS", [])
WEB_HOST = env_text("LEDGER_HOST", "127.0.0.1")  # where `quickstart` listens
WEB_PORT = env_integer("LEDGER_PORT", 8000)
SERVES_HTTPS = env_flag("LEDGER_HTTPS", IS_PRODUCTION)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = SERVES_HTTPS
SECURE_REDIRECT_EXEMPT = [r"^healthz/$"]
SECURE_HSTS_SECONDS = env_integer("LEDGER_HSTS_SECONDS", 0) if SERVES_HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = SECURE_HSTS_SECONDS > 0
IS_BEHIND_PROXY = env_flag("LEDGER_BEHIND_PROXY", False)
if IS_BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"

# --- Applications -----------------------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "ledger.config",
    "ledger",
    "billing",
    "ingest",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "ledger.middleware.RequestIdMiddleware",
    "ledger.middleware.ContentSecurityPolicyMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "ledger.middleware.NulMiddleware",
]

ROOT_URLCONF = "ledger.config.urls"
WSGI_APPLICATION = "ledger.config.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

AUTH_USER_MODEL = "ledger.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
# Wrong passwords for one name from one place before it has to wait.
SIGN_IN_FAILURES = env_integer("LEDGER_SIGN_IN_FAILURES", 5)
SIGN_IN_LOCK_MINUTES = env_integer("LEDGER_SIGN_IN_LOCK_MINUTES", 15)
API_REQUESTS_PER_MINUTE = env_integer("LEDGER_API_REQUESTS_PER_MINUTE", 6000)
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"

# --- OpenID Connect (off without a client id) ---------------------------------------------------------

OIDC_RP_CLIENT_ID = env_text("LEDGER_OIDC_CLIENT_ID")
OIDC_RP_CLIENT_SECRET = env_text("LEDGER_OIDC_CLIENT_SECRET")
OIDC_OP_AUTHORIZATION_ENDPOINT = env_text("LEDGER_OIDC_AUTHORIZATION_URL")
OIDC_OP_TOKEN_ENDPOINT = env_text("LEDGER_OIDC_TOKEN_URL")
OIDC_OP_USER_ENDPOINT = env_text("LEDGER_OIDC_USERINFO_URL")
OIDC_OP_JWKS_ENDPOINT = env_text("LEDGER_OIDC_JWKS_URL")
if OIDC_RP_CLIENT_ID and not all(
    (OIDC_OP_AUTHORIZATION_ENDPOINT, OIDC_OP_TOKEN_ENDPOINT, OIDC_OP_USER_ENDPOINT, OIDC_OP_JWKS_ENDPOINT)
):
    raise ImproperlyConfigured("LEDGER_OIDC_CLIENT_ID needs the four LEDGER_OIDC_..._URL beside it.")
OIDC_RP_SIGN_ALGO = env_text("LEDGER_OIDC_SIGN_ALGORITHM", "RS256")
OIDC_RP_SCOPES = env_text("LEDGER_OIDC_SCOPES", "openid email profile")
OIDC_USERNAME_CLAIM = env_text("LEDGER_OIDC_USERNAME_CLAIM", "sub")
OIDC_GROUPS_CLAIM = env_text("LEDGER_OIDC_GROUPS_CLAIM", "groups")
OIDC_ROLES = env_pairs("LEDGER_OIDC_ROLES")
OIDC_USE_PKCE = True
OIDC_TIMEOUT = 10
OIDC_AUTHENTICATION_CALLBACK_URL = "ledger:openid-callback"
LOGIN_REDIRECT_URL_FAILURE = "/login/?refused=1"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend", "ledger.oidc.OpenIdBackend"]

# --- Database ---------------------------------------------------------------------------------------

DATABASE_URL = env_text("DATABASE_URL")
DATABASES: dict[str, dict[str, Any]] = {
    "default": database_from_url(DATABASE_URL)
    if DATABASE_URL
    # The embedded server is found, or started, when the first connection is made and not before.
    else {"ENGINE": "ledger.embedded.backend", "NAME": "ledger", "OPTIONS": {}}
}
EMBEDDED_DURABLE = True
DATABASES["default"]["CONN_MAX_AGE"] = 60
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Celery -----------------------------------------------------------------------------------------

BROKER_URL = env_text("BROKER_URL")  # empty: the embedded Valkey in var/
if BROKER_URL:
    CELERY_BROKER_URL = BROKER_URL
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_TASK_IGNORE_RESULT = True
# A batch is the unit of work and booking it is safe to repeat: acknowledge after the work, not before.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A request must get its answer while the broker is down: give up soon, beat picks the batch up later.
CELERY_BROKER_CONNECTION_TIMEOUT = 2
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2}
CELERY_TASK_DEFAULT_QUEUE = env_text("LEDGER_QUEUE", "ledger")
if BROKER_URL.startswith(("amqp", "pyamqp")):
    # Quorum queues survive the loss of a node; they cannot use a global prefetch limit nor per-message
    # expiry, hence the detection and the delayed delivery that Celery brings for them.
    CELERY_TASK_DEFAULT_QUEUE_TYPE = "quorum"
    CELERY_TASK_DEFAULT_EXCHANGE_TYPE = "topic"
    CELERY_WORKER_DETECT_QUORUM_QUEUES = True
    CELERY_BROKER_NATIVE_DELAYED_DELIVERY_QUEUE_TYPE = "quorum"
    CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = {"confirm_publish": True, "connect_timeout": 2}
else:
    # What a killed worker held is delivered again after that time; beat looks for its batches sooner.
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "socket_connect_timeout": 2,
        "socket_timeout": 10,
        "visibility_timeout": 900,
    }
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {}  # filled from BEAT_SCHEDULE of each tasks.py

# --- Wiring -----------------------------------------------------------------------------------------

# Billing asks what the inbox still holds before a month closes, without knowing that there is one.
INBOX_EVIDENCE = "ingest.selectors.month_evidence.month_evidence"
RAW_BATCHES = "ingest.selectors.raw_batches.raw_batches"
# And has reservations that follow from contracts booked like any other fact.
BOOK_EVENTS = "ingest.services.own_events.book_own_events"
# Pruning asks billing which months have an open dispute, without knowing what a dispute is.
MONTHS_IN_DISPUTE = "billing.selectors.disputes.months_in_dispute"
# And which days a computation may still have to read request by request.
DAYS_OF_CUT_SLOTS = "billing.selectors.cut_days.days_of_cut_slots"

# --- Alerts -----------------------------------------------------------------------------------------

# Where people reach these pages, for links in messages: https://ledger.example.org
PUBLIC_URL = env_text("LEDGER_PUBLIC_URL").rstrip("/")
# Networks that are not public and yet may be told of alerts: 10.0.0.0/8,192.168.7.9/32
WEBHOOK_PRIVATE_NETWORKS = env_list("LEDGER_WEBHOOK_PRIVATE_NETWORKS", [])

# The section list counts what is open without the record knowing who opens it.
OPEN_ALERTS = "billing.selectors.alerts.open_count"

# --- Languages, time, static files ------------------------------------------------------------------

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
STATIC_ROOT = Path(env_text("LEDGER_STATIC_ROOT") or VAR_DIR / "static").absolute()


def _package_dir(package: str) -> Path:
    """Where a package lies, without the cost of importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImproperlyConfigured(f"The package {package} is not installed; run `make install`.")
    return Path(spec.submodule_search_locations[0])


# plotly.min.js comes with the Python package: nothing is fetched from another host, nothing is vendored.
STATICFILES_DIRS = [("plotly", _package_dir("plotly") / "package_data")]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
# Serves straight from the packages, so that a first run needs no collectstatic.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

# --- REST API ---------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "ledger.api.authentication.BearerAuthentication",
        "ledger.api.authentication.BrowserAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["ledger.api.throttling.PrincipalThrottle"],
    "DEFAULT_RENDERER_CLASSES": [
        "ledger.api.renderers.JsonRenderer",
        "ledger.api.renderers.CsvRenderer",
    ],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "ledger.api.schema.LedgerSchema",
    "EXCEPTION_HANDLER": "ledger.api.problems.problem_handler",
    "URL_FORMAT_OVERRIDE": "format",
    "COERCE_DECIMAL_TO_STRING": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "GPU chargeback and preemption ledger",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    # One set of choices under several field names needs a name of its own.
    "ENUM_NAME_OVERRIDES": {
        "QuotaLayer": ["cluster", "serving"],
        "AlertKind": "billing.models.alerts.AlertKind",
        "AlertSeverity": "billing.models.alerts.Severity",
        "BudgetKind": ["amount", "gpu_hours"],
        "MeasuredKind": ["input_tokens", "cached_input_tokens", "output_tokens", "gpu_us"],
        "DifferenceKind": ["source_total", "engine", "tokens", "quota"],
        "ApprovalKind": "billing.models.life.ApprovalKind",
        "BasisKind": ["gpu_time", "tokens"],
        "AlertState": "billing.models.alerts.AlertState",
        "StatementState": "billing.models.statement.StatementState",
        "ChecklistState": ["clean", "blocked", "open", "waived"],
        "ProposalState": ["waiting", "in_force"],
        "ReservationState": ["active", "planned"],
        "ApprovalDecision": "billing.models.life.Decision",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "ledger.api.schema_additions.add_examples",
        "ledger.api.schema_additions.add_links",
    ],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# --- Mail and logging -------------------------------------------------------------------------------

EMAIL_BACKEND = env_text("LEDGER_EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend")
DEFAULT_FROM_EMAIL = env_text("LEDGER_FROM_EMAIL", "ledger@localhost")
# A server that does not answer must not hold a worker.
EMAIL_TIMEOUT = 15
if EMAIL_URL := env_text("LEDGER_EMAIL_URL"):
    globals().update(email_from_url(EMAIL_URL))

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env_text("LEDGER_LOG_LEVEL", "WARNING").upper()},
}
