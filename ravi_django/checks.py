"""`manage.py check`: what cannot work, said before it fails. Ids are stable."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Error, Info, Warning, register
from django.db import connections, router
from django.urls import NoReverseMatch
from django.utils.module_loading import import_string

from ravi_django.conf import DEFAULTS, broker_url, conf

SQLITE_LINE = (
    'DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", '
    '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}'
)
_ABOVE_0 = (
    *("MAX_RESULT_BYTES", "MAX_BLOB_BYTES", "MAX_TOOL_CALLS", "MAX_TOOL_S", "MAX_TOOL_BYTES", "TOOL_THREADS"),
    "RESERVE_TOKENS",
)


@register("ravi")
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    given = getattr(settings, "RAVI", None) or {}
    if not isinstance(given, dict):
        return [Error("RAVI must be a dict.", hint='RAVI = {"LEASE_S": 30}', id="ravi.E001")]
    from ravi_django import limits
    from ravi_django.kernel import InvalidInputError
    from ravi_django.runtime.budgets.accounts import faults as faults_of_daily
    from ravi_django.runtime.lifecycle.prune import (
        retention,  # needs the models, which are not loaded when this module is
    )
    from ravi_django.runtime.middleware.chain import of_site
    from ravi_django.runtime.model_calls.call import faults

    found: list[CheckMessage] = [
        Error(f"RAVI has an unknown key {key!r}.", hint=f"Known keys: {', '.join(sorted(DEFAULTS))}.", id="ravi.E002")
        for key in sorted(set(given) - set(DEFAULTS))
    ]
    if conf.ENGINE not in ("celery", "inline"):
        found.append(Error(f"RAVI['ENGINE'] is {conf.ENGINE!r}.", hint='Use "celery" or "inline".', id="ravi.E003"))
    if conf.REPLAY not in ("lenient", "strict"):
        found.append(Error(f"RAVI['REPLAY'] is {conf.REPLAY!r}.", hint='Use "lenient" or "strict".', id="ravi.E004"))
    if conf.ON_USER_DELETE not in ("erase", "anonymize", "keep"):
        hint = 'Use "erase", "anonymize" or "keep".'
        found.append(Error(f"RAVI['ON_USER_DELETE'] is {conf.ON_USER_DELETE!r}.", hint=hint, id="ravi.E032"))
    try:
        retention()
    except InvalidInputError as error:
        hint = 'RETENTION = 90, or {"journal": 90, "streams": 7}: days; None keeps everything.'
        found.append(Error(f"RAVI: {error}.", hint=hint, id="ravi.E006"))
    try:
        of_site()
    except InvalidInputError as error:
        hint = 'MIDDLEWARE = ["mysite.middleware.audit"]: a middleware, its class, or a function that makes it.'
        found.append(Error(f"{error}.", hint=hint, id="ravi.E010"))
    if conf.CACHE_ALIAS not in settings.CACHES:
        hint = f"CACHES has {', '.join(sorted(settings.CACHES))}."
        found.append(Error(f"RAVI['CACHE_ALIAS'] is {conf.CACHE_ALIAS!r}.", hint=hint, id="ravi.E008"))
    hint = 'PRICES = {"gpt-4o*": {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05}}: dollars a token.'
    found += [Error(f"RAVI['PRICES']{fault}.", hint=hint, id="ravi.E007") for fault in faults(conf.PRICES)]
    hint = 'DAILY_BUDGETS = {"user": {"max_tokens": 1000000}, "tenant": {"max_cost_usd": 50, "max_turns": 10000}}.'
    daily = faults_of_daily(conf.DAILY_BUDGETS)
    found += [Error(f"RAVI['DAILY_BUDGETS']{fault}.", hint=hint, id="ravi.E011") for fault in daily]
    found += [
        Error(f"RAVI[{name!r}] is {value!r}.", hint="A number above 0, as the default is.", id="ravi.E009")
        for name in _ABOVE_0
        if isinstance(value := getattr(conf, name), bool) or not isinstance(value, int | float) or not value > 0
    ]
    hint = 'LIMITS = {"submit": 600, "sockets": None}: what is named changes; None switches one off.'
    found += [Error(f"RAVI['LIMITS']{fault}.", hint=hint, id="ravi.E030") for fault in limits.faults(conf.LIMITS)]
    hint = 'SOCKET_ORIGINS = ["https://app.example.com"]: scheme, host and port, if it is not the scheme\'s own.'
    found += [Error(f"RAVI['SOCKET_ORIGINS']{fault}.", hint=hint, id="ravi.E031") for fault in _origins()]
    found += _people()
    if conf.HEARTBEAT_S * 2 > conf.LEASE_S:
        found.append(
            Error(
                "RAVI['HEARTBEAT_S'] is more than half of LEASE_S: one late heartbeat would lose every lease.",
                hint="Keep HEARTBEAT_S at a third of LEASE_S.",
                id="ravi.E005",
            )
        )
    return found


def _origins() -> list[str]:
    from ravi_django.services.openings import parts_of

    given = conf.SOCKET_ORIGINS
    if not isinstance(given, list | tuple):
        return [f" is {given!r}, not a list"]
    found = []
    for origin in given:
        try:
            parts_of(origin)
        except ValueError as error:
            found.append(f": {error}")
    return found


def _people() -> list[CheckMessage]:
    """Who is asked, and who may answer: a fault here would be found when the first request is made, or refuse all."""
    from ravi_django.runtime.people.site_rules import faults

    hint = 'ADDRESSEES = {"approval": {"refund": [("group:finance", 4 * 3600), "group:directors"], "*": "staff"}}.'
    found: list[CheckMessage] = [
        Error(f"RAVI['ADDRESSEES']{fault}.", hint=hint, id="ravi.E012") for fault in faults(conf.ADDRESSEES)
    ]
    for name, takes in (("MAY_ANSWER", "(user, request)"), ("TENANT_OF", "(user)"), ("LANGUAGE_OF", "(user)")):
        given, why = getattr(conf, name), ""
        try:
            hook = import_string(given) if isinstance(given, str) else given
        except ImportError as error:
            hook, why = None, f": {error}"
        if why or (hook is not None and not callable(hook)):
            hint = f'{name} = "mysite.people.{name.lower()}": the dotted path of a function {takes}; or None.'
            found.append(Error(f"RAVI[{name!r}] is {given!r}{why}.", hint=hint, id="ravi.E013"))
    if not isinstance(conf.FOUR_EYES, bool):
        found.append(Error(f"RAVI['FOUR_EYES'] is {conf.FOUR_EYES!r}.", hint="True or False.", id="ravi.E014"))
    return found


@register("ravi")
def check_access_policy(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """A policy that cannot be loaded refuses everything."""
    from ravi_django import access
    from ravi_django.runtime.catalog import registry

    try:
        is_default = type(access.policy()) is access.AccessPolicy
    except Exception as error:
        words = f"RAVI['ACCESS_POLICY'] is {conf.ACCESS_POLICY!r}: {error}."
        hint = 'ACCESS_POLICY = "mysite.access.Policy": a subclass of ravi_django.access.AccessPolicy.'
        return [Error(words, hint=hint, id="ravi.E016")]
    known = registry.known_addresses()
    if is_default and known and all(registry.access_of(address) == "private" for address in known):
        words = "all agents are private: register(agent, access=…)"
        hint = 'Over REST they are for holders of ravi.run_agent. access="authenticated" opens one to every user.'
        return [Info(words, hint=hint, id="ravi.I001")]
    return []


@register("ravi")
def check_hidden_tools(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """A site whose settings ask owners to confirm what they may not read: the staff are asked in their place."""
    from ravi_django.agents.tools.approvers import approvers_of, refuse_owner
    from ravi_django.kernel import InvalidInputError, Risk
    from ravi_django.runtime.catalog import registry
    from ravi_django.runtime.people import site_rules

    found: list[CheckMessage] = []
    for tool in registry.known_tools():
        try:
            for kind in ("approval", "uncertain") if approvers_of(tool) is None else ("uncertain",):
                for risk in Risk:
                    refuse_owner(tool, site_rules.addressees(kind, tool.name, risk.value))
        except InvalidInputError as error:
            hint = 'RAVI["ADDRESSEES"] names the owner for it: name "staff", or others.'
            found.append(Error(f"{error}.", hint=hint, id="ravi.E017"))
    return found


@register("ravi")
def check_processes(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Things that work in one process and silently fail between several."""
    if conf.ENGINE != "celery":
        return []
    found: list[CheckMessage] = []
    from ravi_django import limits

    if conf.LIMITS is not None and conf.CACHE_ALIAS in settings.CACHES and not limits.is_shared():
        backend = settings.CACHES[conf.CACHE_ALIAS]["BACKEND"]
        found.append(
            Warning(
                f"RAVI['LIMITS'] are not counted across processes by {backend}.",
                hint='CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": …}}',
                id="ravi.W030",
            )
        )
    layer = getattr(settings, "CHANNEL_LAYERS", {}).get("default", {}).get("BACKEND", "")
    if not layer or layer.endswith("InMemoryChannelLayer"):
        found.append(
            Warning(
                "No channel layer reaches other processes: pages show new requests to people some seconds late.",
                hint='CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", …}}',
                id="ravi.W001",
            )
        )
    return found + _celery()


def _celery() -> list[CheckMessage]:
    """By the Celery app in use, however the site has configured it."""
    from celery import current_app

    found: list[CheckMessage] = []
    broker = broker_url()
    if not broker or broker.startswith("memory:"):
        found.append(
            Warning(
                "Celery has no broker that another process can reach.",
                hint="Set CELERY_BROKER_URL, or RAVI['ENGINE'] = 'inline' and run manage.py ravi_worker.",
                id="ravi.W002",
            )
        )
    elif not current_app.conf.broker_write_url:
        project = settings.ROOT_URLCONF.partition(".")[0]
        hint = f"from .celery import app as celery_app, in {project}/__init__.py"
        return [Warning("the web process does not load your Celery app", hint=hint, id="ravi.W007")]
    current_app.finalize()  # runs what the site has connected to on_after_finalize, as beat does
    entries = current_app.conf.beat_schedule.values()
    if not _has_beat_of_its_own(current_app) and not any(_task_of(entry) == "ravi.sweep" for entry in entries):
        found.append(
            Warning(
                "Celery beat does not run the sweep: runs of dead workers would stay where they are.",
                hint='CELERY_BEAT_SCHEDULE = {"ravi-sweep": {"task": "ravi.sweep", "schedule": 5}}',
                id="ravi.W003",
            )
        )
    return found


def _task_of(entry: Any) -> str:
    return str(entry.get("task") if isinstance(entry, dict) else entry.task)


def _has_beat_of_its_own(app: Any) -> bool:
    """Whether the schedule may lie elsewhere, as in rows: `health/` and the doctor look at the last sweep."""
    return apps.is_installed("django_celery_beat") or app.conf.beat_scheduler != "celery.beat:PersistentScheduler"


@register("ravi")
def check_request_email(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """The addresses in e-mails: workers, which write them, know no host."""
    from ravi_django.runtime.people import links

    given, valid = conf.REQUEST_EMAIL, conf.REQUEST_LINK_S
    hint = 'REQUEST_EMAIL = "https://example.com": where people reach this site; None sends no e-mails.'
    found: list[CheckMessage] = []
    if isinstance(valid, bool) or not isinstance(valid, int | float) or not valid > 0:
        found.append(Error(f"RAVI['REQUEST_LINK_S'] is {valid!r}.", hint="Seconds, above 0.", id="ravi.E015"))
    if given is None:
        return found
    if not isinstance(given, str) or not _is_site(given):
        return [*found, Error(f"RAVI['REQUEST_EMAIL'] is {given!r}.", hint=hint, id="ravi.E015")]
    try:
        links.path_to("request-list")
    except NoReverseMatch:
        words = "RAVI['REQUEST_EMAIL'] is set, and the page that its e-mails lead to has no address."
        mount = (
            'path("ravi/", include("ravi_django.urls")) in the ROOT_URLCONF. Arguments of its prefix: '
            "RAVI['URL_KWARGS']."
        )
        found.append(Warning(words, hint=mount, id="ravi.W006"))
    return found


def _is_site(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        return False


@register("ravi")
def check_event_bus(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    given, most = conf.EVENT_BUS, conf.EVENT_MAXLEN
    found: list[CheckMessage] = []
    known = isinstance(given, str) and (given in ("auto", "memory") or given.startswith(_SERVERS))
    if given is not None and not known:
        hint = 'None writes no events; "auto" is the Redis of the streams, "memory" this process alone, or an address.'
        return [Error(f"RAVI['EVENT_BUS'] is {given!r}.", hint=f"{hint} redis://host:6379/0", id="ravi.E020")]
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        hint = "How many events of a topic are kept: a whole number above 0."
        found.append(Error(f"RAVI['EVENT_MAXLEN'] is {most!r}.", hint=hint, id="ravi.E020"))
    if given is not None and conf.ENGINE == "celery" and _is_bus_of_one_process():
        words = "The event bus is this process alone: what other processes' runs do is not seen here."
        hint = 'RAVI[\'EVENT_BUS\'] = "redis://host:6379/0", or "auto" where the streams have a Redis.'
        found.append(Warning(words, hint=hint, id="ravi.W020"))
    return found


_SERVERS = ("redis://", "rediss://", "unix://")


def _is_bus_of_one_process() -> bool:
    from ravi_django.runtime.events import site

    return site.address() == site.MEMORY


@register("ravi")
def check_source_places(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """What sources may look into: a fault here would be found by each of them."""
    from ravi_django.runtime.sources import saves

    roots = conf.DROP_ROOTS
    hint = 'DROP_ROOTS = ["/srv/drops"]: directories that are there, by their whole paths; sources look below them.'
    found: list[CheckMessage] = []
    if not isinstance(roots, list | tuple):
        found.append(Error(f"RAVI['DROP_ROOTS'] is {roots!r}, not a list.", hint=hint, id="ravi.E018"))
        roots = []
    found += [
        Error(f"RAVI['DROP_ROOTS'] has {root!r}, which is no directory here.", hint=hint, id="ravi.E018")
        for root in roots
        if not (isinstance(root, str | PurePath) and Path(root).is_absolute() and Path(root).is_dir())
    ]
    hint = 'SOURCE_MODELS = ["shop.Order", "blog"]: models, or all of an app, whose saves sources may tell agents of.'
    faults = saves.faults()
    return found + [Error(f"RAVI['SOURCE_MODELS']{fault}.", hint=hint, id="ravi.E019") for fault in faults]


@register("ravi")
def check_database(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    if conf.DATABASE not in settings.DATABASES:
        hint = f"DATABASES has {', '.join(sorted(settings.DATABASES))}."
        return [Error(f"RAVI['DATABASE'] is {conf.DATABASE!r}, which is no alias.", hint=hint, id="ravi.E022")]
    users = router.db_for_write(get_user_model())
    if users != conf.DATABASE:
        hint = f"RAVI = {{'DATABASE': {users!r}}}: runs refer to their owners, and both are written in one transaction."
        return [
            Error(f"RAVI['DATABASE'] is {conf.DATABASE!r}, and the users are in {users!r}.", hint=hint, id="ravi.E023")
        ]
    if found := _unfit():
        return found
    database = connections[conf.DATABASE].settings_dict
    if conf.DATABASE_DIRECT is not None and (fault := _fault_of_direct(database)):
        hint = 'DATABASE_DIRECT = "direct": an alias in DATABASES that reaches the same PostgreSQL past its pooler.'
        return [Error(f"RAVI['DATABASE_DIRECT'] is {conf.DATABASE_DIRECT!r}{fault}.", hint=hint, id="ravi.E024")]
    if "sqlite3" not in database["ENGINE"]:
        return []
    if database.get("OPTIONS", {}).get("transaction_mode") in ("IMMEDIATE", "EXCLUSIVE"):
        return []
    return [
        Warning(
            "SQLite without IMMEDIATE transactions fails at once when two threads write.",
            hint=SQLITE_LINE,
            id="ravi.W004",
        )
    ]


def _unfit() -> list[CheckMessage]:
    """On such a site runs would be lost, or stay "running" for ever."""
    vendor = connections[conf.DATABASE].vendor
    if vendor not in ("postgresql", "sqlite"):
        hint = "Use PostgreSQL, or SQLite for a small site. RAVI['DATABASE'] may name another alias than \"default\"."
        return [Error(f"RAVI['DATABASE'] is {conf.DATABASE!r}, which is {vendor}.", hint=hint, id="ravi.E025")]
    if vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            hint = 'pip install "ravi-django[postgres]". Django then uses psycopg 3 for the whole site.'
            return [Error("PostgreSQL is reached by psycopg2, not by psycopg 3.", hint=hint, id="ravi.E026")]
    if not settings.USE_TZ:
        hint = "USE_TZ = True. Django's documentation has the steps for a site whose rows have local times."
        return [Error("USE_TZ is False: times without a time zone cannot order runs.", hint=hint, id="ravi.E027")]
    return []


def _fault_of_direct(database: dict[str, Any]) -> str:
    """A pooler may have another address, another name and another user for the same database: the doctor asks it."""
    if conf.DATABASE_DIRECT not in settings.DATABASES:
        return ", which is no alias"
    direct = connections[conf.DATABASE_DIRECT].settings_dict
    if connections[conf.DATABASE_DIRECT].vendor != "postgresql" or connections[conf.DATABASE].vendor != "postgresql":
        return ", and both have to be PostgreSQL"
    if direct["NAME"] != database["NAME"] and all(direct[name] == database[name] for name in ("HOST", "PORT")):
        return f", which is another database of the same server: {direct['NAME']!r}"
    return ""
