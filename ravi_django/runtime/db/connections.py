"""A worker's own connections to PostgreSQL: their settings, and how long they wait.

A thread that hangs longer than its leases live loses them. So each wait for a lock or for an answer has a limit: in the
session of a connection of our own, and in each transaction where a pooler's other clients use the session too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connections

from ravi_django.conf import conf
from ravi_django.db import MODE, alias, is_shared, limit_transaction, transaction

log = logging.getLogger("ravi.database")

T = TypeVar("T")

SHAPES = 30  # statements that stay prepared; each costs the server 0.4 MB
_TCP = {"keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 15_000}
_local = threading.local()


def limit_waits() -> None:
    """Mark the thread: its PostgreSQL connections wait no longer than a heartbeat for a lock or an answer. The app's
    alias is the worker's own connection on it: the one of DATABASE_DIRECT, and never one of Django's `pool`."""
    _local.limited = True
    mine = connections[alias()]
    if mine.vendor == "postgresql":
        mine.settings_dict = own_settings()


def own_settings() -> dict[str, Any]:
    """The entry in DATABASES for a worker's own connections. A thread keeps its connection for its whole life: from
    Django's `pool` it would take a place away from the site."""
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
            cursor.execute(f"{_limits(seconds)}; SET SESSION CHARACTERISTICS AS TRANSACTION {MODE}")
        return
    # What is set for the session would hold for the pooler's other clients too.
    raw.isolation_level, raw.read_only = IsolationLevel.READ_COMMITTED, False
    raw.ravi_limits = _limits(seconds, "LOCAL")
    if _in_transaction not in connection.execute_wrappers:
        connection.execute_wrappers.append(_in_transaction)


def _limits(seconds: float, scope: str = "") -> str:
    # A thread that falls asleep in a transaction must not keep its runs locked: others take them over.
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    return "; ".join(f"SET {scope} {name} = {int(seconds * 900)}" for name in names)


def _in_transaction(execute: Callable[..., T], sql: str, params: Any, many: bool, context: dict[str, Any]) -> T:
    """Around each statement of Django on a thread's shared connection: limits hold inside a transaction alone."""
    mine = context["connection"]
    if mine.in_atomic_block or not is_shared(mine):
        limit_transaction(mine)
        return execute(sql, params, many, context)
    with transaction.atomic(using=mine.alias):
        limit_transaction(mine)
        return execute(sql, params, many, context)


@contextmanager
def limited(mine: Any) -> Iterator[None]:
    """The same around one statement of our own: the transaction costs no round trip."""
    raw = mine.connection
    limits = getattr(raw, "ravi_limits", None)
    if limits is None or mine.in_atomic_block:
        limit_transaction(mine)
        yield
        return
    try:
        with raw.pipeline():
            for statement in (f"BEGIN {MODE}", *limits.split("; ")):
                raw.execute(statement)
            yield
            raw.execute("COMMIT")
    except BaseException:
        if not raw.closed:
            raw.rollback()
        raise


def _in_time(raw: Any, steps: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """The steps of one exchange with the server. The network may have lost the connection without a word: where no
    answer comes in time, close it. psycopg steps at least every 0.1 s."""
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
