"""`manage.py check`: report wrong settings. The ids are stable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, router
from django.urls import NoReverseMatch
from django.utils.module_loading import import_string

from ravi_django import wing
from ravi_django.conf import DEFAULTS, broker_url, conf, in_tests
from ravi_django.kernel.checks import did_you_mean

SQLITE_LINE = (
    'DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", '
    '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}'
)
_CHOICES: dict[str, tuple[Any, ...]] = {
    "ENGINE": ("ravi.E003", "celery", "inline", "manual"),
    "REPLAY": ("ravi.E004", "lenient", "strict"),
    "ON_BUSY": ("ravi.E034", "enqueue", "steer", "interrupt", "reject"),
    "FAIR_BY": ("ravi.E033", "owner", "tenant", None),
    "ON_USER_DELETE": ("ravi.E032", "erase", "anonymize", "keep"),
    "FOUR_EYES": ("ravi.E014", True, False),
    "CLIENT_INSTRUCTIONS": ("ravi.E042", "refuse", "quote"),
    "UNKNOWN_HISTORY": ("ravi.E043", "new", "refuse"),
}
_MAY_BE_0 = ("DRAIN_S", "RETRY_BASE_S", "MAX_DEPTH")
_NUMBERS = sorted(name for name, default in DEFAULTS.items() if type(default) in (int, float))


def wrong(name: str, hint: str, id: str, fault: str = "") -> CheckMessage:
    return Error(f"RAVI[{name!r}] is {getattr(conf, name)!r}{fault}.", hint=hint, id=id)


def _each(name: str, messages: Iterable[str], hint: str, id: str) -> list[CheckMessage]:
    return [Error(f"RAVI[{name!r}]{fault}{'' if fault[-1:] == '?' else '.'}", hint=hint, id=id) for fault in messages]


def _is_above_0(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value > 0


@register("ravi")
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    configured = getattr(settings, "RAVI", None) or {}
    if not isinstance(configured, dict):
        return [Error("RAVI must be a dict.", hint='RAVI = {"LEASE_S": 30}', id="ravi.E001")]
    # These modules need the models, which are not loaded when this module is imported.
    from ravi_django import limits
    from ravi_django.calls.middleware.chain import of_site
    from ravi_django.calls.model.call import setting_errors, unknown_price_errors
    from ravi_django.calls.model.model_limits import setting_errors as errors_of_limits
    from ravi_django.kernel import InvalidInputError
    from ravi_django.runs.budgets.accounts import setting_errors as errors_of_daily
    from ravi_django.runs.catalog.row_models import setting_errors as errors_of_models
    from ravi_django.runs.files.files import setting_errors as errors_of_files
    from ravi_django.runs.files.media import largest_call
    from ravi_django.runs.lifecycle.prune import retention

    problems: list[CheckMessage] = [
        Error(
            f"RAVI has an unknown key {key!r}{did_you_mean(key, DEFAULTS) or '.'}",
            hint=f"Known keys: {', '.join(sorted(DEFAULTS))}.",
            id="ravi.E002",
        )
        for key in sorted(set(configured) - set(DEFAULTS))
    ]
    for name, (id, *values) in _CHOICES.items():
        if getattr(conf, name) not in values:
            quoted = [f'"{value}"' if isinstance(value, str) else f"{value}" for value in values]
            problems.append(wrong(name, f"Use {' or '.join(quoted)}.", id))
    try:
        retention()
    except InvalidInputError as error:
        hint = 'RETENTION = 90, or {"journal": 90, "streams": 7}: days; None keeps everything.'
        problems.append(Error(f"RAVI: {error}.", hint=hint, id="ravi.E006"))
    try:
        of_site()
    except InvalidInputError as error:
        hint = 'MIDDLEWARE = ["mysite.middleware.audit"]: a middleware, its class, or a function that makes it.'
        problems.append(Error(f"{error}.", hint=hint, id="ravi.E010"))
    if conf.CACHE_ALIAS not in settings.CACHES:
        problems.append(wrong("CACHE_ALIAS", f"CACHES has {', '.join(sorted(settings.CACHES))}.", "ravi.E008"))
    hint = 'PRICES = {"gpt-4o*": {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05}}: dollars a token.'
    problems += _each("PRICES", setting_errors(conf.PRICES), hint, "ravi.E007")
    hint = 'UNKNOWN_PRICE = None, "allow", or dollars per million tokens, 0 or more.'
    problems += _each("UNKNOWN_PRICE", unknown_price_errors(conf.UNKNOWN_PRICE), hint, "ravi.E040")
    hint = 'MODEL_LIMITS = {"openai/*": {"requests_per_min": 500, "tokens_per_min": 200_000, "at_once": 50}}.'
    problems += _each("MODEL_LIMITS", errors_of_limits(conf.MODEL_LIMITS), hint, "ravi.E041")
    hint = 'MODELS = ["openai/gpt-4o*", "ollama/llama3"]: names and patterns; None allows models of known hosts.'
    problems += _each("MODELS", errors_of_models(conf.MODELS), hint, "ravi.E037")
    hint = 'DAILY_BUDGETS = {"user": {"max_tokens": 1000000}, "tenant": {"max_cost_usd": 50, "max_turns": 10000}}.'
    problems += _each("DAILY_BUDGETS", errors_of_daily(conf.DAILY_BUDGETS), hint, "ravi.E011")
    problems += _numbers()
    hint = 'LIMITS = {"submit": 600, "sockets": None}: named limits change; None switches one off.'
    problems += _each("LIMITS", limits.setting_errors(conf.LIMITS), hint, "ravi.E030")
    hint = 'FILES = {"types": ["image/png", "application/pdf"], "max_mb": 20, "user_mb": 1024}: named values change.'
    problems += _each("FILES", errors_of_files(conf.FILES), hint, "ravi.E035")
    if _is_above_0(conf.PROCESS_BYTES) and not problems and largest_call() > conf.PROCESS_BYTES:
        hint = f"At least {largest_call()}: five times the larger of 50 MB and FILES['max_mb']."
        problems.append(wrong("PROCESS_BYTES", hint, "ravi.E036", ", too little for the largest model call"))
    hint = 'SOCKET_ORIGINS = ["https://app.example.com"]: scheme, host and port, unless it is the default port.'
    problems += _each("SOCKET_ORIGINS", _origins(), hint, "ravi.E031")
    problems += _people()
    if not _numbers() and conf.HEARTBEAT_S * 2 > conf.LEASE_S:
        text = "RAVI['HEARTBEAT_S'] is more than half of LEASE_S: one late heartbeat would lose every lease."
        problems.append(Error(text, hint="Keep HEARTBEAT_S at a third of LEASE_S.", id="ravi.E005"))
    return problems


def _numbers() -> list[CheckMessage]:
    problems: list[CheckMessage] = []
    for name in _NUMBERS:
        value, least = getattr(conf, name), "of 0 or more" if name in _MAY_BE_0 else "above 0"
        if not (_is_above_0(value) or (value == 0 and name in _MAY_BE_0)):
            problems.append(wrong(name, f"A number {least}; the default is {DEFAULTS[name]:g}.", "ravi.E009"))
    if conf.MAX_TREE is not None and not _is_above_0(conf.MAX_TREE):
        problems.append(wrong("MAX_TREE", "A number above 0; the default is None.", "ravi.E009"))
    return problems


def _origins() -> list[str]:
    from ravi_django.services.open_streams import parts_of

    origins = conf.SOCKET_ORIGINS
    if not isinstance(origins, list | tuple):
        return [f" is {origins!r}, not a list"]
    messages = []
    for origin in origins:
        try:
            parts_of(origin)
        except ValueError as error:
            messages.append(f": {error}")
    return messages


def _people() -> list[CheckMessage]:
    """Settings of requests to people."""
    from ravi_django.people.site_rules import setting_errors

    hint = 'ADDRESSEES = {"approval": {"refund": [("group:finance", 4 * 3600), "group:directors"], "*": "staff"}}.'
    problems = _each("ADDRESSEES", setting_errors(conf.ADDRESSEES), hint, "ravi.E012")
    for name, takes in (("MAY_ANSWER", "(user, request)"), ("TENANT_OF", "(user)"), ("LANGUAGE_OF", "(user)")):
        value, why = getattr(conf, name), ""
        try:
            hook = import_string(value) if isinstance(value, str) else value
        except ImportError as error:
            hook, why = None, f": {error}"
        if why or (hook is not None and not callable(hook)):
            hint = f'{name} = "mysite.people.{name.lower()}": the dotted path of a function {takes}; or None.'
            problems.append(wrong(name, hint, "ravi.E013", why))
    return problems


@register("ravi")
def check_processes(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Settings that work in one process only."""
    if conf.ENGINE == "manual" and not in_tests():
        text = "RAVI['ENGINE'] is 'manual': submitted runs wait for ravi_django.testing.run_until_idle."
        return [Warning(text, hint="Leave ENGINE out: in tests it is 'manual' anyway.", id="ravi.W032")]
    if conf.ENGINE != "celery":
        return []
    problems: list[CheckMessage] = []
    from ravi_django import limits

    without = [
        *(["RAVI['LIMITS'] are not counted across processes"] if conf.LIMITS is not None else []),
        *(["calls that a client of v1/ repeats are not recognised"] if "protocols" in wing.names() else []),
    ]
    if without and conf.CACHE_ALIAS in settings.CACHES and not limits.is_shared():
        text = f"{' and '.join(without)}: {settings.CACHES[conf.CACHE_ALIAS]['BACKEND']} is not a shared cache."
        hint = 'CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": …}}'
        problems.append(Warning(text, hint=hint, id="ravi.W030"))
    layer = getattr(settings, "CHANNEL_LAYERS", {}).get("default", {}).get("BACKEND", "")
    if not layer or layer.endswith("InMemoryChannelLayer"):
        text = "CHANNEL_LAYERS has no layer that reaches other processes: pages show new requests some seconds late."
        hint = 'CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", …}}'
        problems.append(Warning(text, hint=hint, id="ravi.W001"))
    return problems + _celery()


def _celery() -> list[CheckMessage]:
    """The configuration of the Celery app in use."""
    from celery import current_app

    problems: list[CheckMessage] = []
    broker = broker_url()
    if not broker or broker.startswith("memory:"):
        hint = "Set CELERY_BROKER_URL, or RAVI['ENGINE'] = 'inline' and run manage.py ravi_worker."
        problems.append(Warning("Celery has no broker that another process can reach.", hint=hint, id="ravi.W002"))
    elif not current_app.conf.broker_write_url:
        project = settings.ROOT_URLCONF.partition(".")[0]
        hint = f"from .celery import app as celery_app, in {project}/__init__.py"
        return [Warning("the web process does not load your Celery app", hint=hint, id="ravi.W007")]
    if apps.is_installed("django_celery_beat") or current_app.conf.beat_scheduler != "celery.beat:PersistentScheduler":
        return problems  # the schedule may be elsewhere: `health/` and the doctor check the last sweep
    current_app.finalize()  # calls the site's handlers of on_after_finalize, as beat does
    entries = current_app.conf.beat_schedule.values()
    tasks = {str(entry.get("task") if isinstance(entry, dict) else entry.task) for entry in entries}
    if "ravi.sweep" not in tasks:
        text = "Celery beat does not run the sweep: schedules, sources and escalations would not happen."
        hint = 'CELERY_BEAT_SCHEDULE = {"ravi-sweep": {"task": "ravi.sweep", "schedule": 5}}'
        problems.append(Warning(text, hint=hint, id="ravi.W003"))
    return problems


@register("ravi")
def check_request_email(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """The URLs in e-mails: workers write them, without a request that has the host."""
    from ravi_django.people import mail

    site = conf.REQUEST_EMAIL
    if site is None:
        return []
    if not isinstance(site, str) or not _is_site(site):
        hint = 'REQUEST_EMAIL = "https://example.com": the address of this site; None sends no e-mails.'
        return [wrong("REQUEST_EMAIL", hint, "ravi.E015")]
    try:
        mail.path_to("request-list")
    except NoReverseMatch:
        text = "RAVI['REQUEST_EMAIL'] is set, but the page of its links has no URL."
        hint = (
            'path("ravi/", include("ravi_django.urls")) in ROOT_URLCONF. Arguments of its prefix: RAVI[\'URL_KWARGS\'].'
        )
        return [Warning(text, hint=hint, id="ravi.W006")]
    return []


def _is_site(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        return False


@register("ravi")
def check_wings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """The wings of the site, and what they check themselves."""
    listed = conf.WINGS if isinstance(conf.WINGS, list | tuple | set | frozenset) else [conf.WINGS]
    hint = f"WINGS = []: any of {', '.join(map(repr, wing.NAMES))}."
    unknown = (f" has no {name!r}{did_you_mean(name, wing.NAMES)}" for name in listed if name not in wing.NAMES)
    return _each("WINGS", unknown, hint, "ravi.E039") + [fault for _, check in wing.each("checks") for fault in check()]


@register("ravi")
def check_database(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    if conf.DATABASE not in settings.DATABASES:
        hint = f"DATABASES has {', '.join(sorted(settings.DATABASES))}."
        return [wrong("DATABASE", hint, "ravi.E022", ", which is not an alias in DATABASES")]
    users = router.db_for_write(get_user_model())
    if users != conf.DATABASE:
        hint = f"RAVI = {{'DATABASE': {users!r}}}: runs refer to their owners, and both are written in one transaction."
        return [wrong("DATABASE", hint, "ravi.E023", f", and the users are in {users!r}")]
    if problems := _unfit():
        return problems
    database = connections[conf.DATABASE].settings_dict
    if conf.DATABASE_DIRECT is not None and (fault := _fault_of_direct(database)):
        hint = 'DATABASE_DIRECT = "direct": an alias in DATABASES that reaches the same PostgreSQL past its pooler.'
        return [wrong("DATABASE_DIRECT", hint, "ravi.E024", fault)]
    mode = database.get("OPTIONS", {}).get("transaction_mode")
    if "sqlite3" not in database["ENGINE"] or mode in ("IMMEDIATE", "EXCLUSIVE"):
        return []
    text = 'Two threads that write to SQLite at once raise "database is locked": transactions are not IMMEDIATE.'
    return [Warning(text, hint=SQLITE_LINE, id="ravi.W004")]


def _unfit() -> list[CheckMessage]:
    """Databases and settings on which runs would be lost, or stay "running" forever."""
    vendor = connections[conf.DATABASE].vendor
    if vendor not in ("postgresql", "sqlite"):
        hint = "Use PostgreSQL, or SQLite for a small site. RAVI['DATABASE'] may name another alias than \"default\"."
        return [wrong("DATABASE", hint, "ravi.E025", f", which is {vendor}")]
    if vendor == "postgresql":
        from django.db.backends.postgresql.base import psycopg_version

        version = psycopg_version()
        if version < (3, 2, 13):  # before, the statement on a connection that the network has lost never ended
            hint = 'pip install "ravi-django[postgres]". Django then uses psycopg 3 for the whole site.'
            text = f"PostgreSQL is reached by psycopg {'.'.join(map(str, version))}, not by 3.2.13 or newer."
            return [Error(text, hint=hint, id="ravi.E026")]
    if not settings.USE_TZ:
        hint = "USE_TZ = True. Django's documentation has the steps for a site whose rows have local times."
        return [Error("USE_TZ is False: times without a time zone cannot order runs.", hint=hint, id="ravi.E027")]
    return []


def _fault_of_direct(database: dict[str, Any]) -> str:
    """A pooler may have another address, name and user for the same database: the doctor compares the databases."""
    if conf.DATABASE_DIRECT not in settings.DATABASES:
        return ", which is not an alias in DATABASES"
    direct = connections[conf.DATABASE_DIRECT].settings_dict
    if connections[conf.DATABASE_DIRECT].vendor != "postgresql" or connections[conf.DATABASE].vendor != "postgresql":
        return ", and both have to be PostgreSQL"
    if direct["NAME"] != database["NAME"] and all(direct[name] == database[name] for name in ("HOST", "PORT")):
        return f", which is another database of the same server: {direct['NAME']!r}"
    return ""


@register("ravi")
def check_persistent_connections(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Under ASGI each request may use another thread, and each thread keeps its connection."""
    persistent = [name for name, database in connections.settings.items() if database.get("CONN_MAX_AGE", 0) != 0]
    if not (persistent and getattr(settings, "ASGI_APPLICATION", None)):
        return []
    text = f"CONN_MAX_AGE keeps connections open ({', '.join(persistent)}): under ASGI, one of each thread."
    hint = 'CONN_MAX_AGE = 0. For PostgreSQL, OPTIONS = {"pool": True} keeps a limited number.'
    return [Warning(text, hint=hint, id="ravi.W008")]
