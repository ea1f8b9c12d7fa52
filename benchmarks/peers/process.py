"""A system under measurement: a process that answers commands, see timing.py."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.peers import environment
from benchmarks.peers.comparison import OURS
from benchmarks.stack import ROOT, Stack
from project.process import ProcessError

HERE = Path(__file__).resolve().parent

TIMEOUT_S = 120.0


class System:
    """Our own system or a peer, in a process and a database of its own."""

    def __init__(self, name: str, servers: Stack, lease_s: float, role: str = "steady") -> None:
        self.name = name
        self.url = servers.database_url if name == OURS else database(servers.database_url, f"bench_{name}")
        self._log = servers.folder / f"{name}-{role}.log"
        command = [str(environment.PYTHON), str(HERE / f"loop_{name}.py"), self.url, str(int(lease_s))]
        if name == OURS:
            command = [sys.executable, "-m", "benchmarks.peers.loop_ravi_django"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=dict(os.environ) if name == OURS else _bare_environment(role),
            )
        self._answer()

    def ask(self, command: str) -> float:
        self.tell(command)
        return float(self._answer())

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stored(self) -> int:
        """Bytes of all its tables as they lie on disk, indexes and TOAST too."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute("SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables").fetchone()
            return int(row[0] or 0) if row else 0

    def _answer(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_S)
        answer = self._process.stdout.readline() if ready else ""
        if not answer:
            self.kill()
            raise ProcessError(f"{self.name} did not answer\n{self._log.read_text()[-3000:]}")
        return answer


@contextmanager
def running(system: System) -> Iterator[System]:
    try:
        yield system
    finally:
        system.kill()


def database(url: str, name: str) -> str:
    """The URL of a database of the same server; makes it the first time."""
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return url.rsplit("/", 1)[0].replace("postgres://", "postgresql://") + f"/{name}"


def _bare_environment(role: str) -> Mapping[str, str]:
    """Nothing of ours, and nothing that would send the peers' telemetry or traces anywhere."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    return {
        **kept,
        "BENCH_ROLE": role,
        "LANGSMITH_TRACING": "false",
        "LANGCHAIN_TRACING_V2": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
