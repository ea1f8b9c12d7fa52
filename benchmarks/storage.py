"""What a run leaves in the database, and how many commits its calls cost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psycopg
from django.conf import settings
from django.db import connection, connections
from django.test import override_settings
from psycopg import sql

from benchmarks import report
from benchmarks.report import Figure
from project.process import ProcessError, wait_until

QUIET_S = 3600.0  # longer than the benchmark: no heartbeat and no sweep commits in between
SHOWN = 0.5  # bytes a turn or a run; smaller parts have no line

Agents = Callable[[int], Any]  # by the number of turns


class Part(NamedTuple):
    table: str
    kind: str  # "row", "column" or "index"; "heap" is the table without its indexes, as it lies on disk
    name: str = ""


@dataclass(frozen=True, slots=True)
class State:
    commits: int  # since the statistics began
    disk: int  # bytes of all our tables as they lie on disk, indexes and TOAST too
    parts: Counter[Part]  # bytes

    @property
    def rows(self) -> int:
        """Bytes of the rows alone."""
        return sum(size for part, size in self.parts.items() if part.kind == "row")


class Database:
    """Looks at the site's database from the one beside it, whose statements do not count."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        self._beside = psycopg.connect(url, dbname="template1", autocommit=True)

    def state(self) -> State:
        """Once everybody has left: a connection reports its commits when it ends."""
        commits = self._commits()
        parts: Counter[Part] = Counter()
        with psycopg.connect(self._url) as connection:
            sizes = "SELECT relname, pg_total_relation_size(relid), pg_table_size(relid) FROM pg_stat_user_tables"
            tables = connection.execute(f"{sizes} WHERE relname ~ '^ravi_'").fetchall()
            for table, _, heap in tables:
                parts[Part(table, "heap")] = heap
                parts.update(_columns(connection, table))
            indexes = "SELECT relname, indexrelname, pg_relation_size(indexrelid) FROM pg_stat_user_indexes"
            for table, index, size in connection.execute(f"{indexes} WHERE relname ~ '^ravi_'").fetchall():
                parts[Part(table, "index", index)] = size
        return State(commits, sum(total for _, total, _ in tables), parts)

    def _commits(self) -> int:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        if not wait_until(lambda: _one(self._beside, others, self._name) == 0, 10.0):
            raise ProcessError("somebody else is connected to the benchmark's database")
        return _one(self._beside, "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", self._name)

    def vacuumed(self, by_itself: bool) -> None:
        """Whether PostgreSQL vacuums our tables. While it does, dead rows stay, and the figures vary."""
        with psycopg.connect(self._url) as connection:
            ours = connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^ravi_' AND relkind = 'r'")
            for (table,) in ours.fetchall():
                change = sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = {})")
                connection.execute(change.format(sql.Identifier(table), sql.Literal(by_itself)))

    def close(self) -> None:
        self._beside.close()


def _columns(connection: Any, table: str) -> dict[Part, int]:
    """Bytes of the rows, and of each column's values in them."""
    named = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    names = [name for (name,) in connection.execute(named, (table,)).fetchall()]
    total = sql.SQL("coalesce(sum(pg_column_size(t.{})), 0)")
    wanted = [sql.SQL("coalesce(sum(pg_column_size(t.*)), 0)"), *(total.format(sql.Identifier(name)) for name in names)]
    query = sql.SQL("SELECT {} FROM {} AS t").format(sql.SQL(", ").join(wanted), sql.Identifier(table))
    parts = [Part(table, "row"), *(Part(table, "column", name) for name in names)]
    return dict(zip(parts, map(int, connection.execute(query).fetchone()), strict=True))


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
    parts: Mapping[Part, int]

    @property
    def calls(self) -> int:
        return self.runs * (2 * self.turns - 1)

    def table(self) -> str:
        """Bytes a turn by table, column and index; of runs of one turn, bytes a run."""
        count, head = self.runs * self.turns, "a run" if self.turns == 1 else "a turn"
        sizes = {part: size / count for part, size in self.parts.items()}
        lines = [["table", "part", f"bytes {head} of {self.turns}"]]
        heaps = {part.table: size for part, size in sizes.items() if part.kind == "heap"}
        for table in sorted(heaps, key=lambda one: -heaps[one]):
            here = {part: size for part, size in sizes.items() if part.table == table and size >= SHOWN}
            for part in sorted(here, key=lambda one: (("heap", "row", "column", "index").index(one.kind), -here[one])):
                lines.append([table.removeprefix("ravi_"), f"{part.kind} {part.name}".strip(), f"{here[part]:.0f}"])
        return report.table(lines)


async def _drive(turns: int, runs: int, agents: Agents | None = None) -> None:
    from benchmarks.agents import loop_agent
    from benchmarks.steps import run_once, runtime

    async with runtime() as rt:
        await rt.register((agents or loop_agent)(turns))
        for _ in range(runs):
            await run_once(rt, turns)


def _drive_quietly(turns: int, runs: int, agents: Agents | None = None) -> None:
    quiet = {"HEARTBEAT_S": QUIET_S, "SWEEP_S": QUIET_S, "LEASE_S": 4 * QUIET_S}
    with override_settings(RAVI={**settings.RAVI, **quiet}):
        asyncio.run(_drive(turns, runs, agents))


def grow(database: Database, turns: int, runs: int, agents: Agents | None = None) -> Grown:
    from ravi_django.live.rollups import counting

    while counting.sweep():  # else a sweep would update the rows of earlier runs meanwhile
        pass
    connections.close_all()
    before = database.state()
    _drive_quietly(turns, runs, agents)
    after = database.state()
    commits, disk = after.commits - before.commits, after.disk - before.disk
    parts = {part: size - before.parts[part] for part, size in after.parts.items()}
    return Grown(turns, runs, commits, disk, after.rows - before.rows, parts)


def measure(runs: Mapping[int, int], url: str, *, detailed: bool = False) -> Iterator[Figure]:
    """`runs` says how many runs of each number of turns; the first and the last give the commits' slope. `detailed`
    prints the bytes by table, column and index for these two."""
    connections.close_all()
    database = Database(url)
    database.vacuumed(False)
    try:
        grow(database, min(runs), 1)  # the first page of each table and index
        grown = []
        for turns, times in runs.items():
            grown.append(grow(database, turns, times))
            yield from _bytes(grown[-1])
        if detailed:
            print(grown[0].table(), grown[-1].table(), sep="\n\n", flush=True)
            yield from _of_provider(database, runs)
    finally:
        database.vacuumed(True)
        database.close()
    yield from _commits(grown[0], grown[-1])


def _bytes(grown: Grown, suffix: str = "") -> list[Figure]:
    turns = grown.runs * grown.turns
    return [
        Figure(f"stored_per_turn{suffix}", grown.turns, grown.disk / turns, "B"),
        Figure(f"stored_per_turn{suffix}_rows", grown.turns, grown.rows / turns, "B"),
        Figure(f"stored_per_run{suffix}", grown.turns, grown.disk / grown.runs / 1000, "kB"),
    ]


def _of_provider(database: Database, runs: Mapping[int, int]) -> Iterator[Figure]:
    """The same with the answers of a stand-in provider, read by litellm."""
    from benchmarks.agents import provider_agent
    from tests.support.openai_server import OpenAIServer, Reply

    for turns, times in runs.items():
        with OpenAIServer(provider_script(turns, Reply)) as server:
            made = provider_agent(turns, server.base_url)
            grow(database, turns, 1, lambda turns, made=made: made)
            yield from _bytes(grow(database, turns, max(2, times // 4), lambda turns, made=made: made), "_provider")


def provider_script(turns: int, reply: Any) -> Callable[[Any], Any]:
    from benchmarks.agents import ANSWER

    def script(body: Any) -> Any:
        done = sum(message["role"] == "tool" for message in body["messages"])
        return reply(text=ANSWER) if done >= turns - 1 else reply(tool_calls=(("add", {"a": 1, "b": done}),))

    return script


def _commits(short: Grown, long: Grown) -> list[Figure]:
    """Submitting, claiming, settling and publishing cost every run the same: they cancel out between the two."""
    a_short, a_long = short.commits / short.runs, long.commits / long.runs
    calls_short, calls_long = short.calls / short.runs, long.calls / long.runs
    a_call = (a_long - a_short) / (calls_long - calls_short)
    return [
        Figure("commits_per_call", None, a_call, "commits"),
        Figure("commits_per_run_besides", None, a_short - a_call * calls_short, "commits"),
    ]


def in_sqlite(runs: Mapping[int, int]) -> list[Figure]:
    """By how much the file of a site on SQLite grows with the same runs."""
    with TemporaryDirectory(prefix="ravi-bench-") as folder:
        file = Path(folder) / "site.sqlite3"
        env = {**os.environ, "DATABASE_URL": f"sqlite:///{file}", "REDIS_URL": ""}
        command = [sys.executable, "-m", "benchmarks.storage", str(file), json.dumps(runs)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise ProcessError(f"the runs on SQLite failed\n{done.stderr[-3000:]}")
    sizes: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return [Figure("stored_per_run_sqlite", int(turns), size / 1000, "kB") for turns, size in sizes.items()]


def _grow_file(file: Path, runs: Mapping[str, int]) -> dict[str, float]:
    """Bytes of the file by turns of a run."""
    from benchmarks import stack

    stack.set_up_site()
    grown = {}
    for turns, times in runs.items():
        _drive_quietly(int(turns), 1)
        before = _file_size(file)
        _drive_quietly(int(turns), times)
        grown[turns] = (_file_size(file) - before) / times
    return grown


def _file_size(file: Path) -> int:
    """With all that is still in its write-ahead log."""
    connections.close_all()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connections.close_all()
    return file.stat().st_size


if __name__ == "__main__":
    print(json.dumps(_grow_file(Path(sys.argv[1]), json.loads(sys.argv[2]))))
