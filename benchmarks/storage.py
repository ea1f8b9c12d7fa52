"""What a run leaves in the database, and how many commits its calls cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from django.conf import settings
from django.db import connections
from django.test import override_settings
from psycopg import sql

from benchmarks.agents import loop_agent
from benchmarks.report import Figure
from benchmarks.steps import run_once, runtime
from project.process import ProcessError, wait_until

QUIET_S = 3600.0  # longer than the benchmark: no heartbeat and no sweep commits in between


@dataclass(frozen=True, slots=True)
class State:
    commits: int  # since the statistics began
    disk: int  # bytes of all our tables as they lie on disk, indexes and TOAST too
    rows: int  # bytes of their rows alone


class Database:
    """Looks at the site's database from the one beside it, whose statements do not count."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        self._beside = psycopg.connect(url, dbname="template1", autocommit=True)

    def state(self) -> State:
        """Once everybody has left: a connection reports its commits when it ends."""
        commits = self._commits()
        with psycopg.connect(self._url, autocommit=True) as connection:
            tables = "SELECT relname, pg_total_relation_size(relid) FROM pg_stat_user_tables WHERE relname ~ '^ravi_'"
            sizes = dict(connection.execute(tables).fetchall())
            row_size = sql.SQL("SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {} AS t")
            rows = sum(_one(connection, row_size.format(sql.Identifier(table))) for table in sizes)
        return State(commits, sum(sizes.values()), rows)

    def _commits(self) -> int:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        if not wait_until(lambda: _one(self._beside, others, self._name) == 0, 10.0):
            raise ProcessError("somebody else is connected to the benchmark's database")
        return _one(self._beside, "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", self._name)

    def close(self) -> None:
        self._beside.close()


def _one(connection: Any, query: Any, *params: Any) -> int:
    return int(connection.execute(query, params or None).fetchone()[0])


@dataclass(frozen=True, slots=True)
class Grown:
    """By how much the database grew with `runs` runs of `turns` turns."""

    turns: int
    runs: int
    commits: int
    disk: int
    rows: int

    @property
    def calls(self) -> int:
        return self.runs * (2 * self.turns - 1)


async def _drive(turns: int, runs: int) -> None:
    async with runtime() as rt:
        await rt.register(loop_agent(turns))
        for _ in range(runs):
            await run_once(rt, turns)


def grow(database: Database, turns: int, runs: int) -> Grown:
    before = database.state()
    quiet = {"HEARTBEAT_S": QUIET_S, "SWEEP_S": QUIET_S, "LEASE_S": 4 * QUIET_S}
    with override_settings(RAVI={**settings.RAVI, **quiet}):
        asyncio.run(_drive(turns, runs))
    after = database.state()
    return Grown(turns, runs, after.commits - before.commits, after.disk - before.disk, after.rows - before.rows)


def measure(runs: Mapping[int, int], url: str) -> Iterator[Figure]:
    """`runs` says how many runs of each number of turns; the first and the last give the commits' slope."""
    connections.close_all()
    database = Database(url)
    try:
        grow(database, min(runs), 1)  # the first page of each table and index
        grown = []
        for turns, times in runs.items():
            grown.append(grow(database, turns, times))
            yield from _bytes(grown[-1])
    finally:
        database.close()
    yield from _commits(grown[0], grown[-1])


def _bytes(grown: Grown) -> list[Figure]:
    turns = grown.runs * grown.turns
    return [
        Figure("stored_per_turn", grown.turns, grown.disk / turns, "B"),
        Figure("stored_per_turn_rows", grown.turns, grown.rows / turns, "B"),
        Figure("stored_per_run", grown.turns, grown.disk / grown.runs / 1000, "kB"),
    ]


def _commits(short: Grown, long: Grown) -> list[Figure]:
    """Submitting, claiming, settling and publishing cost every run the same: they cancel out between the two."""
    a_short, a_long = short.commits / short.runs, long.commits / long.runs
    calls_short, calls_long = short.calls / short.runs, long.calls / long.runs
    a_call = (a_long - a_short) / (calls_long - calls_short)
    return [
        Figure("commits_per_call", None, a_call, "commits"),
        Figure("commits_per_run_besides", None, a_short - a_call * calls_short, "commits"),
    ]
