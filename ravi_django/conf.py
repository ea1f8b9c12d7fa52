"""The site's settings: `settings.RAVI` overrides these defaults. `manage.py check` reports unknown keys."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured

from ravi_django.wing import NAMES

DEFAULTS: dict[str, Any] = {
    # How submitted runs start: "celery" sends a hint to the broker, "inline" runs them in this process, "manual" waits
    # for run_until_idle. None: "manual" in tests, else "celery" where Celery has a broker, else "inline".
    "ENGINE": None,
    # The Celery queue of all tasks of the app, the sweep among them.
    "QUEUE": "ravi",
    # The alias in DATABASES that holds the app's rows and the user model.
    "DATABASE": "default",
    # An alias that reaches the same database without the pooler, for the workers' connections. None: DATABASE.
    "DATABASE_DIRECT": None,
    # The module or package of each installed app that registers agents: imported at startup. None: nothing is imported.
    "AGENTS_MODULE": "agents",
    # The parts of the app that the site has beside the core; see wing.py.
    "WINGS": [*NAMES],
    # The version of this deployment's code: stored with its runs and its worker processes.
    "RELEASE": "",
    # --- leases, seconds
    "LEASE_S": 30.0,
    "HEARTBEAT_S": 10.0,
    "SWEEP_S": 5.0,
    "DRAIN_S": 20.0,
    # --- a worker process
    "MAX_RUNS": 500,
    # Bytes that its model calls and the bodies of its requests hold at once.
    "PROCESS_BYTES": 256 * 1024 * 1024,
    # A run with more open runs of its "owner", or of its "tenant", is claimed later. None: not.
    "FAIR_BY": "owner",
    # A message while the agent is at work: "enqueue", "steer", "interrupt" or "reject"; see docs/howto/start-runs.md.
    "ON_BUSY": "enqueue",
    "DB_THREADS": 4,
    "TOOL_THREADS": 32,
    # --- retries
    "MAX_ATTEMPTS": 5,
    "RETRY_BASE_S": 1.0,
    # Seconds for which a provider may refuse all requests by its rate limit before the calls that wait for it fail.
    "PROVIDER_WAIT_S": 3600.0,
    # The limits of all processes together, by model name or pattern, which may have "{tenant}":
    # {"openai/*": {"requests_per_min": 500, "tokens_per_min": 200_000, "at_once": 50}}
    "MODEL_LIMITS": {},
    # --- limits
    "MAX_INPUT_BYTES": 256 * 1024,
    "MAX_RESULT_BYTES": 1024 * 1024,
    "MAX_DEPTH": 16,
    "MAX_AGENTS": 50,
    "MAX_TREE": None,
    "MAX_TOOL_CALLS": 50,
    "MAX_TOOL_S": 300.0,
    "MAX_TOOL_BYTES": 16 * 1024 * 1024,
    # Limits of a user over REST and sockets. A site may set some of them; None switches one off, or all of them.
    "LIMITS": {
        "submit": 60,  # runs and messages a minute
        "signals": 120,  # a minute
        "fork": 20,  # a minute
        "fork_bytes": 50 * 1024 * 1024,  # that forks copy, an hour
        "follows": 60,  # made, changed and deleted, a minute
        "emit": 30,  # a minute
        "tickets": 120,  # a minute
        "files": 60,  # uploads a minute
        "sessions": 60,  # made, renamed and deleted, a minute
        "emit_deliveries": 1000,  # followers that a user's publications reach a minute; the rest wait
        "sockets": 20,  # open
        "streams": 20,  # open event streams
        "queued_runs": 100,
    },
    # Uploaded files: the types that are allowed, by their content, and megabytes of one file and of a user's files.
    "FILES": {
        "types": (
            *("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", "text/plain"),
            *("audio/wav", "audio/mpeg", "video/mp4", "video/webm"),
        ),
        "max_mb": 20,
        "user_mb": 1024,
    },
    "TOOL_TIMEOUT_S": 60.0,
    "MODEL_TIMEOUT_S": 120.0,
    "MODEL_TOTAL_S": 600.0,
    # --- US dollars a token, by model name or pattern. They override litellm's list; a model's `prices` override them
    "PRICES": {},
    # --- the price of other models, in dollars per million tokens; "allow": no limit. None: no budget in dollars
    "UNKNOWN_PRICE": None,
    # --- budgets of each user and each tenant for a day (UTC): {"user": {"max_tokens": …}, "tenant": {…}}
    "DAILY_BUDGETS": {},
    # --- names and patterns of the models that agents in the database may use. None: models of known hosts
    "MODELS": None,
    # --- the alias in CACHES for LIMITS, and for a ResponseCache without an alias
    "CACHE_ALIAS": "default",
    # --- dotted names of middlewares or their factories, around every agent's own; the first is the outermost
    "MIDDLEWARE": [],
    # --- replay: "lenient" records a changed digest and continues, "strict" blocks the run
    "REPLAY": "lenient",
    # --- streams: None uses the Redis of the channel layer or the broker, else the database
    "STREAM_URL": None,
    # --- REST: dotted paths of DRF authentication classes. None: the site's DEFAULT_AUTHENTICATION_CLASSES, else token
    # (when installed) and session. An empty list counts as not set.
    "API_AUTHENTICATION": None,
    # Instructions and system messages of clients: "refuse" them, or "quote" them in the user's message.
    "CLIENT_INSTRUCTIONS": "refuse",
    # A client's history that is no conversation of the user: begin a "new" conversation and say so, or "refuse" it.
    "UNKNOWN_HISTORY": "new",
    # Arguments of the prefix of the app's URLs, for links in e-mails and in the admin.
    "URL_KWARGS": {},
    # The path of the sockets in the ASGI router, below the site's prefix; or an absolute path or URL ("/…", "wss://…").
    "SOCKET_PATH": "ws/ravi/",
    # Origins whose pages may open sockets with a cookie, besides the site's own and CSRF_TRUSTED_ORIGINS.
    "SOCKET_ORIGINS": [],
    # Whether the pages for people are mounted with the API: the chat and the dashboard.
    "PAGES": True,
    # --- people: the addresses of requests, by their kind; see docs/howto/people.md
    "ADDRESSEES": {},
    # The owner of a run may not decide on its approvals, uncertain effects and budgets.
    "FOUR_EYES": True,
    # Dotted path, or function (user, request) -> bool: anything but True refuses an answer that the address allows.
    "MAY_ANSWER": None,
    # Dotted path, or function (user) -> the tenant, several, or None for all, whose requests the user may see.
    "TENANT_OF": None,
    # Dotted path, or function (user) -> the language of their e-mails, "de"; None is the site's LANGUAGE_CODE.
    "LANGUAGE_OF": None,
    # The site's address ("https://example.com") for e-mails to people who may answer. None sends no e-mails.
    "REQUEST_EMAIL": None,
    "REQUEST_LINK_S": 7 * 24 * 3600,
    # --- access: dotted path of an AccessPolicy; see docs/reference/access.md
    "ACCESS_POLICY": "ravi_django.access.AccessPolicy",
    # Owners may read the journals of their runs.
    "JOURNAL_FOR_OWNERS": True,
    # --- the social graph
    "FAN_OUT_BATCH": 5000,
    # Unread deliveries that a follower may have; later ones wait and come in one message.
    "FEED_UNREAD": 100,
    # --- sources: private networks that may be polled, bytes of a response
    "SOURCE_NETWORKS": [],
    "SOURCE_MAX_BYTES": 5 * 1024 * 1024,
    # Unread items that a run may have; its sources deliver no more until it has read them.
    "SOURCE_UNREAD": 500,
    # --- the event bus: None writes no events, "memory" is this process alone, "auto" the streams' Redis, or its URL
    "EVENT_BUS": None,
    "EVENT_MAXLEN": 100_000,
    # --- personal data of a deleted user: "erase" it, "anonymize" it, or "keep" it without an owner
    "ON_USER_DELETE": "erase",
    # --- retention of `ravi_prune`: None keeps everything; days, or {"journal": days, "streams": days, "ticks": days}
    "RETENTION": None,
}


class Conf:
    """Attribute access to the settings; read each time, so that `override_settings` works."""

    def __getattr__(self, name: str) -> Any:
        configured = getattr(settings, "RAVI", None) or {}
        if not isinstance(configured, dict):
            raise ImproperlyConfigured("RAVI must be a dict of settings")
        try:
            value = configured[name] if name in configured else DEFAULTS[name]
        except KeyError:
            raise AttributeError(f"no setting RAVI[{name!r}]") from None
        if name == "ENGINE" and value is None:
            return "manual" if in_tests() else "celery" if broker_url() else "inline"
        return value


conf = Conf()


def in_tests() -> bool:
    """Whether Django's test runner or pytest-django has set up this process."""
    return hasattr(mail, "outbox")


def is_runserver() -> bool:
    """Whether this process serves pages by `manage.py runserver`, and is not the parent of its autoreload."""
    reloads = os.environ.get("RUN_MAIN") != "true" and "--noreload" not in sys.argv
    return sys.argv[1:2] == ["runserver"] and not reloads


def broker_url() -> str:
    """The URL of Celery's broker, or "": that of the Celery app in use, else of the settings, which a web process uses
    if it does not load the site's Celery app."""
    from celery import current_app

    url = current_app.conf.broker_write_url or getattr(settings, "CELERY_BROKER_URL", None) or ""
    return str(url[0] if isinstance(url, list | tuple) else url).partition(";")[0]


def worker_line() -> str:
    """The command that starts a worker."""
    if conf.ENGINE == "inline":
        return "manage.py ravi_worker"
    return f"celery -A <site> worker -P threads -c 200 -Q {conf.QUEUE}"
