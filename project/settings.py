"""The demo site. Loads with no environment and no services: SQLite, and the runs in the web process itself.

`DATABASE_URL` (postgres://… or sqlite:///…) and `REDIS_URL` make it the real stack; `make demo` sets both.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import django

BASE_DIR = Path(__file__).resolve().parent.parent
HOST = os.environ.get("HOST") or "127.0.0.1"

# For demonstration only. `make demo` passes one of its own, made on the first start and kept in .demo/.
SECRET_KEY = os.environ.get("SECRET_KEY") or "insecure-for-demonstration-only-set-SECRET_KEY-to-deploy"
DEBUG = os.environ.get("DEBUG") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "*" if HOST in {"0.0.0.0", "::"} else HOST]  # noqa: S104

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "ravi_django",
    "project",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "project.views.PrivatePages",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"
WSGI_APPLICATION = "project.wsgi.application"

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
                "project.views.tour",
            ],
        },
    }
]


def sqlite(name: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        # Deferred transactions fail at once when two of them read and then write, whatever the timeout.
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
        "TEST": {"NAME": f"{name}.test"},  # a file: the threads of a test cannot share an in-memory database
    }


def database(url: str) -> dict[str, Any]:
    """Django's database settings from a URL; `?key=value` pairs become the driver's OPTIONS."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return sqlite(unquote(parts.path)[1:])
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ValueError(f"DATABASE_URL begins with {parts.scheme!r}: use postgres://… or sqlite:///…")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


DATABASE_URL = os.environ.get("DATABASE_URL", "")
DATABASES = {"default": database(DATABASE_URL) if DATABASE_URL else sqlite(str(BASE_DIR / "db.sqlite3"))}
MEDIA_ROOT = BASE_DIR / ".cache" / "media"  # uploaded files; served by the app alone
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("REDIS_URL", "")
if REDIS_URL:
    CHANNEL_LAYERS: dict[str, Any] = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
    }
else:
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

if REDIS_URL:  # limits are counted there: one count for all processes
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": REDIS_URL,
            "OPTIONS": {"socket_connect_timeout": 1, "socket_timeout": 1},
        }
    }

CELERY_BROKER_URL = REDIS_URL or "memory://"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # else a worker ends after an hour without a broker
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE = {"ravi-sweep": {"task": "ravi.sweep", "schedule": 5.0}}

RAVI: dict[str, Any] = {
    "ENGINE": "celery" if REDIS_URL else "inline",
    "DRAIN_S": 5.0,  # Ctrl-C is not to take long
    **({"LEASE_S": 8.0, "HEARTBEAT_S": 2.0} if os.environ.get("DEMO_WORKER") else {}),  # a takeover neither
    # The demo's newsrooms read a feed server of this machine; nothing else of its network.
    "SOURCE_NETWORKS": ["127.0.0.1/32"] if os.environ.get("FEED_SERVER_URL") else [],
    # Basic is for trying the API out with curl; a real site leaves this setting alone.
    "API_AUTHENTICATION": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
        "rest_framework.authentication.BasicAuthentication",
    ],
}

_CONSOLE = "django.core.mail.backends.console.EmailBackend"  # into the worker's log
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": _CONSOLE}}
else:
    EMAIL_BACKEND = _CONSOLE

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True  # no collectstatic for the demo

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "chat"
LOGOUT_REDIRECT_URL = "login"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO")},
}
