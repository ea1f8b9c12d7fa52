"""A worker's connections to PostgreSQL: their settings and their limits on waits.

A thread that hangs longer than its leases live loses them. So each wait for a lock or an answer has a limit: set for
the session of an own connection, and for each transaction where other clients of a pooler use the session too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from django.db import connections

from ravi_django.conf import conf
from ravi_django.db import MODE, alias, is_shared, limit_transaction, transaction

log = logging.getLogger("ravi.database")

T = TypeVar("T")

SHAPES = 30  # prepared statements of a connection, at most; each takes 0.4 MB of the server
_TCP = {"keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 15_000}
_local = threading.local()


def limit_waits() -> None:
    """Limit the waits of this thread's PostgreSQL connections to a heartbeat. Its connection for the app's alias uses
    DATABASE_DIRECT, and never Django's `pool`."""
    _local.limited = True
    wrapper = connections[alias()]
    if wrapper.vendor == "postgresql":
        wrapper.settings_dict = own_settings()


def own_settings() -> dict[str, Any]:
    """The entry in DATABASES for a worker's connections, without Django's `pool`: a thread keeps its connection, and
    would take it away from the site."""
    settings = connections[conf.DATABASE_DIRECT or alias()].settings_dict
    options = {**_TCP, "connect_timeout": int(conf.HEARTBEAT_S / 2) or 1, **settings["OPTIONS"]}
    return {**settings, "OPTIONS": {name: value for name, value in options.items() if name != "pool"}}


def limit_new_connection(sender: Any, connection: Any, **kwargs: Any) -> None:
    """On `connection_created`: a database thread must not hang longer than its leases live, and the store is written
    for READ COMMITTED, whatever the default of the database or of the site is."""
    if connection.vendor != "postgresql" or not getattr(_local, "limited", False):
        return
    from psycopg import IsolationLevel

    raw, seconds = connection.connection, conf.HEARTBEAT_S
    raw.isolation_level = None  # that of the session
    raw.prepared_max = SHAPES
    wait = raw.wait
    raw.wait = lambda steps, *args, **kwargs: wait(_in_time(raw, steps, seconds), *args, **kwargs)
    if not is_shared(connection):
        with connection.cursor() as cursor:
            cursor.execute(f"{_limits(seconds, local=False)}; SET SESSION CHARACTERISTICS AS TRANSACTION {MODE}")
        return
    # Settings of the session would apply to other clients of the pooler too.
    raw.isolation_level, raw.read_only = IsolationLevel.READ_COMMITTED, False
    raw.ravi_limits = _limits(seconds, local=True)
    if _in_transaction not in connection.execute_wrappers:
        connection.execute_wrappers.append(_in_transaction)


def _limits(seconds: float, *, local: bool) -> str:
    """One statement, for the session or for the transaction. A thread that hangs in a transaction must not keep its
    runs locked. A commit that is not on disk may be lost with the server, and the effect behind it would run again:
    where the site has switched that off, it is on for workers."""
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    values = ", ".join(f"('{name}', '{int(seconds * 900)}')" for name in names)
    return f"""SELECT set_config(name, value, {local})
        FROM (VALUES {values}, ('synchronous_commit', 'on')) AS setting(name, value)
        WHERE name <> 'synchronous_commit' OR current_setting(name) = 'off'"""  # noqa: S608


def _in_transaction(execute: Callable[..., T], sql: str, params: Any, many: bool, context: dict[str, Any]) -> T:
    """Around each statement of Django on a thread's shared connection: limits hold only inside a transaction."""
    wrapper = context["connection"]
    outside = not wrapper.in_atomic_block and is_shared(wrapper)
    with transaction.atomic(using=wrapper.alias) if outside else nullcontext():
        limit_transaction(wrapper)
        return execute(sql, params, many, context)


@contextmanager
def limited(wrapper: Any) -> Iterator[None]:
    """The same around one own statement: the transaction takes no extra round trip."""
    raw = wrapper.connection
    limits = getattr(raw, "ravi_limits", None)
    if limits is None or wrapper.in_atomic_block:
        limit_transaction(wrapper)
        yield
        return
    try:
        with raw.pipeline():
            for statement in (f"BEGIN {MODE}", limits):
                raw.execute(statement)
            yield
            raw.execute("COMMIT")
    except BaseException:
        if not raw.closed:
            raw.rollback()
        raise


def _in_time(raw: Any, steps: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """The steps of one exchange with the server. Closes the connection without an answer in time: the network may have
    lost it silently. psycopg steps at least every 0.1 s."""
    until = time.monotonic() + seconds
    ready = None
    while True:
        try:
            wanted = steps.send(ready)
        except StopIteration as end:
            return end.value
        ready = yield wanted
        if not ready and time.monotonic() > until:
            from psycopg import OperationalError as NoAnswer

            raw.close()
            error = NoAnswer(f"no answer within {seconds} s: the connection is closed")
            log.warning("%s", error, extra={"action": "db.deadline"})
            raise error
