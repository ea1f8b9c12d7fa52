"""The examinations of `ravi_doctor`. An unexpected exception is a finding too, and does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from django.conf import settings as site
from django.contrib.auth.models import Group
from django.core import checks
from django.core.files.storage import FileSystemStorage
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count

from ravi_django import wing
from ravi_django.calls.llm import pricing
from ravi_django.calls.rehearsal.model import REHEARSAL
from ravi_django.checks import SQLITE_LINE
from ravi_django.conf import conf, worker_line
from ravi_django.db import connection, is_shared
from ravi_django.engine.db import clock
from ravi_django.engine.db.connections import own_settings
from ravi_django.kernel import UnpricedModelError
from ravi_django.live.streams.buffer import get_buffer
from ravi_django.live.streams.valkey import ValkeyBuffer
from ravi_django.models import Erasure, ModelLimit, Run, Schedule, Status, WorkerProcess
from ravi_django.models.files import storage
from ravi_django.people import site_rules
from ravi_django.runs import workers
from ravi_django.runs.catalog import agent_models, specs
from ravi_django.runs.catalog.registry import known_addresses
from ravi_django.site_checks import NOTES, asked

LISTED = 5  # sources or agents; the admin lists them all
UNFINISHED = (Status.PENDING, Status.RUNNING, Status.SUSPENDED, Status.QUEUED)


@dataclass(frozen=True, slots=True)
class Finding:
    level: Literal["ok", "warning", "error"]  # error: runs do not work, or not safely
    what: str
    fix: str = ""


def examine() -> list[Finding]:
    first = [finding for look in (settings, database, migrations) for finding in _safely(look)]
    if first[-1].fix == "manage.py migrate":
        return first  # without the tables all others fail, with fixes of their own
    looks = (tenants, people, agents, files, models, model_limits, services, erasures)
    of_wings = dict(wing.each("findings"))
    return first + [finding for look in (*looks, *of_wings.values()) for finding in _safely(look)]


def _safely(look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(look())
    except Exception as error:
        message = " ".join(str(error).split()) or "no message"
        return [Finding("error", f"{look.__name__}: {type(error).__name__}: {message}", _FIXES.get(look.__name__, ""))]


def has_table(model: Any) -> bool:
    return model._meta.db_table in connection.introspection.table_names()


def settings() -> Iterator[Finding]:
    """Django's system checks of this app."""
    messages = [one for one in checks.run_checks(tags=["ravi"]) if one.id not in NOTES]
    for message in messages:
        if not message.is_silenced():
            level: Literal["error", "warning"] = "error" if message.is_serious() else "warning"
            yield Finding(level, f"{message.id}: {message.msg}", message.hint or "")
    if not messages:
        yield Finding("ok", f"settings: RAVI['ENGINE'] is {conf.ENGINE!r}")


def database() -> Iterator[Finding]:
    connection.ensure_connection()  # Django refuses a server that is too old for it
    if connection.vendor == "postgresql":
        version = connection.pg_version  # type: ignore[attr-defined]
        yield Finding("ok", f"database: PostgreSQL {version // 10_000}.{version % 10_000}")
        yield from _commits()
        yield from _connections()
    elif connection.vendor == "sqlite":  # `settings` reports any other
        yield from _sqlite()


_LOSES = {"off": "a crash of PostgreSQL loses", "local": "a failover to a synchronous standby may lose"}


def _commits() -> Iterator[Finding]:
    """Whether a commit is accepted, and kept."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery(), current_setting('synchronous_commit')")
        is_standby, chosen = cursor.fetchone()
    if is_standby:
        fix = "name the primary in DATABASES, or all hosts and OPTIONS = {'target_session_attrs': 'read-write'}"
        yield Finding("error", "database: it is a standby, which refuses all writes", fix)
    if loses := _LOSES.get(chosen):
        what = f"synchronous_commit is {chosen}: {loses} the last commits, such as new runs and answers of people"
        fix = "ALTER DATABASE … SET synchronous_commit = on; workers replace only off, and only for themselves"
        yield Finding("warning", f"database: {what}", fix)


_POOLER = "behind a pooler"


def _connections() -> Iterator[Finding]:
    """The kind of each connection. A connection through a pooler has no prepared statements."""
    direct = connection.copy()
    direct.settings_dict = own_settings()
    try:
        direct.ensure_connection()
        ways = [_way(connection), _way(direct) + (", by RAVI['DATABASE_DIRECT']" if conf.DATABASE_DIRECT else "")]
        same = _identity(connection) == _identity(direct)
    finally:
        direct.close()
    for kind, way in (("web", ways[0]), ("threads", ways[1]), ("heartbeat", ways[1]), ("loop", ways[1])):
        yield Finding("ok", f"connection: {kind}: {way}")
    if ways[0] == _POOLER and not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        what = "connection: web: a pooler in transaction mode loses the cursors of iterator()"
        yield Finding("warning", what, f'DATABASES["{conf.DATABASE}"]["DISABLE_SERVER_SIDE_CURSORS"] = True')
    if not same:
        what = f"RAVI['DATABASE_DIRECT'] is {conf.DATABASE_DIRECT!r}, which reaches another database"
        yield Finding("error", f"connection: {what}", "name an alias that reaches the database of RAVI['DATABASE']")


def _way(wrapper: Any) -> str:
    if not is_shared(wrapper):
        return "direct"
    return "from Django's pool" if wrapper.settings_dict["OPTIONS"].get("pool") else _POOLER


def _identity(wrapper: Any) -> Any:
    """The database's name and oid and the start of its server, which identify a database."""
    sql = "SELECT datname, oid, pg_postmaster_start_time() FROM pg_database WHERE datname=current_database()"
    with wrapper.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def _sqlite() -> Iterator[Finding]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_version()")
        version = cursor.fetchone()[0]
        cursor.execute("PRAGMA journal_mode")
        mode = cursor.fetchone()[0]
        cursor.execute("PRAGMA synchronous")
        synchronous = cursor.fetchone()[0]
    lost = "; synchronous=NORMAL: a power cut may lose the last commits" if synchronous == 1 else ""
    yield Finding("ok", f"database: SQLite {version}, for a small site{lost}")
    if not synchronous:
        what = "database: SQLite's synchronous is OFF: a power cut loses commits or damages the database"
        yield Finding("warning", what, SQLITE_LINE)
    if mode not in ("wal", "memory"):
        what = f"database: SQLite's journal mode is {mode}: readers and the writer wait for each other"
        yield Finding("warning", what, SQLITE_LINE)


def migrations() -> Iterator[Finding]:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan([node for node in executor.loader.graph.leaf_nodes() if node[0] == "ravi"])
    if plan:
        names = ", ".join(f"ravi.{migration.name}" for migration, _ in plan if migration.app_label == "ravi")
        yield Finding("error", f"migrations: not applied: {names}", "manage.py migrate")
    else:
        yield Finding("ok", "migrations: all applied")


def tenants() -> Iterator[Finding]:
    """Whether users other than superusers see the requests of tenants' runs."""
    if conf.TENANT_OF is None and has_table(Run) and Run.objects.exclude(tenant="").exists():
        what = "runs have tenants, but RAVI['TENANT_OF'] is not set: only owners and superusers see their requests"
        fix = (
            "RAVI['TENANT_OF'] = a function of a user: the tenant or tenants whose requests they may see, None for all"
        )
        yield Finding("warning", f"tenants: {what}", fix)


def people() -> Iterator[Finding]:
    """Whether a request to staff reads many users, because the user model has no field `is_staff`."""
    most = site_rules.READ
    if not site_rules.has_field("is_staff") and site_rules.active_users()[: most + 1].count() > most:
        what = f"a request to staff reads all active users, more than {most}: their model has no field is_staff"
        fix = "add the field, or name a group or a permission in RAVI['ADDRESSEES']"
        yield Finding("warning", f"people: {what}", fix)

    named = {step.to: f"{owner}, {tool}" for owner, tool, _, to in asked() if to is not None for step in to.steps}
    for group in sorted(to for to in named if to.startswith("group:") and has_table(Group)):
        if not Group.objects.filter(name=group[6:]).exists():
            what = f"people: there is no {group}, which approves calls ({named[group]}): nobody can answer them"
            yield Finding("warning", what, "make the group in the admin, or name another one")


def agents() -> Iterator[Finding]:
    addresses = sorted(known_addresses())
    if addresses:
        yield Finding("ok", f"agents: {', '.join(addresses)}")
    else:
        yield Finding(
            "warning",
            "agents: none is registered",
            "call register(agent) in agents.py of an app that is in INSTALLED_APPS",
        )
    if not has_table(Run):
        return
    if conf.ENGINE == "inline":
        workers.forget_killed_here()
    live = {agent for worker in workers.alive() for agent in worker.agents} or set(addresses)
    waiting = Run.objects.filter(status__in=UNFINISHED, agent_version=None).exclude(agent__in=live)
    for agent, count in waiting.values_list("agent").annotate(Count("id")).order_by("agent")[:LISTED]:
        what = f"agents: no live worker has {agent}, and {count} unfinished runs wait for one that has it"
        yield Finding("warning", what, "register an agent of this address again, or cancel these runs in the admin")
    ticking = Schedule.objects.filter(enabled=True).exclude(agent__in=live | (specs.known_agents() - set(addresses)))
    for agent in ticking.values_list("agent", flat=True).distinct().order_by("agent")[:LISTED]:
        what = f"agents: {agent} cannot be run, and enabled schedules submit to it"
        yield Finding("warning", what, "register an agent of this address again, or disable these schedules")


def files() -> Iterator[Finding]:
    """Whether others than the app serve uploaded files, or anything else finds them."""
    where, root, url = storage(), site.MEDIA_ROOT, site.MEDIA_URL
    if not isinstance(where, FileSystemStorage):
        return
    location, current = Path(where.location).resolve(), Path.cwd().resolve()
    fix = 'set STORAGES["ravi"] with OPTIONS {"location": …}: a directory that nobody serves'
    if root and url.strip("/") and location.is_relative_to(Path(root).resolve()):
        yield Finding("warning", f"files: uploads are below MEDIA_ROOT, which the site serves at {url}", fix)
    elif not root and location == current:
        yield Finding("warning", f"files: there is no MEDIA_ROOT, so uploads are in {current}", fix)


def models() -> Iterator[Finding]:
    """The names, keys and prices of the models of all agents. The keys are those of the live workers."""
    is_migrated = has_table(WorkerProcess)
    keys = list(workers.alive().values_list("keys", flat=True)) if is_migrated else []
    models = [*agent_models.in_code(), *(agent_models.in_rows() if is_migrated else ())]
    for model, fault, addresses in agent_models.used(models, keys or (None,)):
        of = ", ".join(sorted(addresses)[:LISTED]) + (", …" if len(addresses) > LISTED else "")
        if fault is not None:
            yield Finding("error", f"model: {fault.what.removeprefix('model ')}: {of}", fault.fix)
            continue
        trial = ", which is only for trying out" if model.name == REHEARSAL else ""
        is_priced = not pricing.unpriced(model)
        yield Finding("ok", f"model: {model.name}{trial}{'' if is_priced else ', without a price'}: {of}")
        if doubt := getattr(model, "doubt", str)():
            what, _, near = doubt.partition(". ")
            yield Finding("warning", f"model: {what}: {of}", f"{near} Else add its price to RAVI['PRICES']".strip())
        if not is_priced:
            what = f"model: {model.name} has no price, so a budget in dollars refuses it: {of}"
            yield Finding("warning", what, UnpricedModelError.WAYS)


def model_limits() -> Iterator[Finding]:
    """The models whose limit is reached, and those that a person has paused."""
    for row in ModelLimit.objects.order_by("name") if has_table(ModelLimit) else ():
        if row.waiting or (row.paused_until and row.paused_until > clock.present()):
            by = f"paused by {row.paused_by}" if row.paused_by else "at its rate limit"
            what = f"model limit: {row} is {by}: {row.waiting} runs wait"
            yield Finding("warning", what, "raise its limit in the admin and at the provider, or add a fallback model")


def services() -> Iterator[Finding]:
    from ravi_django.engine.worker.health import check_all

    for check in check_all():
        what = f"{check.name}: {check.detail}"
        if check.fix:
            yield Finding("warning", what, check.fix)
        elif check.name != "database":  # `database` reports that
            starts_worker = check.name == "worker" or (conf.ENGINE == "inline" and check.name == "sweep")
            more = ", or manage.py runserver, which executes runs too" if conf.ENGINE == "inline" else ""
            fix = worker_line() + more if starts_worker else _FIXES.get(check.name, "")
            yield Finding("ok", what) if check.ok else Finding("error", what.partition("; start")[0], fix)
    yield from streams()


def streams() -> Iterator[Finding]:
    """Whether a full server of the streams deletes keys."""
    buffer = get_buffer()
    if not isinstance(buffer, ValkeyBuffer):
        return
    memory = buffer.memory()
    if (policy := memory.get("maxmemory_policy", "unknown")) != "noeviction":
        limit = "" if memory.get("maxmemory") != 0 else "; now it has no maxmemory"
        what = f"streams: maxmemory-policy is {policy}: a full server may delete parts of streams{limit}"
        yield Finding("warning", what, "set maxmemory-policy noeviction in the Redis or Valkey of the streams")


def erasures() -> Iterator[Finding]:
    """Erasures that have not ended within an hour."""
    if not has_table(Erasure):
        return
    late = Erasure.objects.filter(created_at__lte=clock.after(-3600)).order_by("id")
    if count := late.count():
        names = ", ".join(f"{one} of {f'user {one.user}' if one.user else 'a conversation'}" for one in late[:LISTED])
        what = f"erasures: {count} are older than an hour: {names}{', …' if count > LISTED else ''}"
        fix = "the sweep's log names each row that it cannot delete (sweep.row_failed); cancel runs that do not end"
        yield Finding("warning", what, fix)


_FIXES = {
    **dict.fromkeys(
        (
            "schedules",
            "migrations",
            "sources",
            "outbox",
            "models",
            "model_limits",
            "tenants",
            "people",
            "erasures",
            "agents",
        ),
        "start the database, or fix DATABASES",
    ),
    "database": "start it, or fix DATABASES",
    "broker": "start it, or fix CELERY_BROKER_URL and the import of your Celery app in the project's __init__.py",
    "channel_layer": "start its Redis, or fix CHANNEL_LAYERS",
    "events": "start its Redis, or fix RAVI['STREAM_URL']; unset, it is the channel layer's or the broker's Redis",
    "sweep": "celery -A <site> beat, with the sweep in CELERY_BEAT_SCHEDULE",
}
