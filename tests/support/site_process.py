"""A whole site as its operator runs it: database, Valkey, beat, workers and a client, each a process of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from uuid import uuid4

import psutil
import psycopg
from psycopg.rows import dict_row

from project.process import Child, wait_until
from project.services import Postgres, Valkey
from tests.support import forks, template
from tests.support.columns import as_written
from tests.support.model_server import Conversation, ModelServer
from tests.support.patience import seconds

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = "tests.support.site_settings"
AGENT = "react/assistant"
LEASE_S, SWEEP_S, DRAIN_S = 3.0, 0.5, 3.0  # of the settings
MARGIN_S = seconds(60.0)  # a busy machine may take this long on top
ENDED = {"completed", "failed", "cancelled", "blocked"}


class ForkedChild(Child):
    """A child that the tests' fork server has forked."""

    def _popen(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        env = {**os.environ, **self.env}
        return forks.Popen(self.argv[1:], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


class Worker:
    """One Celery worker. It also serves a queue of its own, by which a test gives it a run."""

    def __init__(self, site: Site, name: str, options: Sequence[str], from_nothing: bool) -> None:
        self.site, self.name = site, name
        command = ["-m", "celery", "-A", "project", "worker", "-n", f"{name}@test", "-Q", f"ravi,{name}", *options]
        self.child = site.child(f"worker-{name}", *command, "--loglevel", "INFO", from_nothing=from_nothing)

    @property
    def pid(self) -> int:
        assert self.child.pid
        return self.child.pid

    @property
    def text(self) -> str:
        return self.child.log.read_text(errors="replace")

    def wait_for(self, words: str, timeout: float = MARGIN_S, *, times: int = 1) -> None:
        found = wait_until(lambda: self.text.count(words) >= times or not self.child.running, timeout)
        found = found and self.text.count(words) >= times
        assert found, f"the log of {self.name} has {self.text.count(words)} times {words!r}, not {times}"

    def drives(self, owner: str) -> bool:
        """Whether that engine is in this worker, or in a child of its pool."""
        family = [self.pid, *(child.pid for child in psutil.Process(self.pid).children())]
        return int(owner.split(":")[-2]) in family

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait_ended(self, timeout: float) -> int:
        assert wait_until(lambda: not self.child.running, timeout), f"{self.name} still runs after {timeout:g} s"
        assert self.child.returncode is not None
        return self.child.returncode


class Client:
    """See tests/support/site_client.py."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        with folder.joinpath("client.log").open("ab") as log:
            self._process = forks.Popen(
                ["-m", "tests.support.site_client"],
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, do: str, **arguments: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], MARGIN_S)
        line = self._process.stdout.readline() if readable else ""
        assert line, f"the client did not answer to {do!r}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def close(self) -> None:
        self._process.communicate(timeout=seconds(10))


class Site:
    """Its PostgreSQL and Valkey are its own: tests restart and empty them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[Worker] = []
        self.children: list[Child] = []
        self._started = 0
        self._warm: list[Worker] = []
        self._database: psycopg.Connection[dict[str, Any]] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.postgres = self._stack.enter_context(Postgres(template.cluster(self.folder / "postgresql"), fast=True))
        self.valkey = self._stack.enter_context(Valkey(self.folder / "valkey", fast=True))
        self.model = self._stack.enter_context(ModelServer())
        self.env = {
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.valkey.url,
            "RAVI_MODEL": "openai/test-model",
            "OPENAI_API_BASE": self.model.base_url,
            "OPENAI_API_KEY": "sk-of-the-test-server",
            "PYTHONUNBUFFERED": "1",
        }
        self._stack.callback(self._disconnect)
        self._stack.callback(self._stop)
        self.client = Client(self.folder, self.env)
        self._stack.callback(self.client.close)
        schedule = self.folder / "celerybeat-schedule"
        self.beat = self.child(
            "beat", "-m", "celery", "-A", "project", "beat", "--schedule", str(schedule), "--pidfile=", "-l", "INFO"
        )
        self.beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for child in self.children:
            if child.running and child.pid:
                os.kill(child.pid, signal.SIGCONT)
            child.ask_to_stop()
        for child in self.children:
            child.stop()

    def child(self, name: str, *command: str, from_nothing: bool = False) -> Child:
        """`python *command`; a fork except for `from_nothing`."""
        child = (Child if from_nothing else ForkedChild)(
            name,
            [sys.executable, *command],
            log=self.folder / f"{name}.log",
            pid_file=self.folder / f"{name}.pid",
            env=self.env,
            cwd=ROOT,
            stop_signals=((signal.SIGTERM, DRAIN_S + 5),),
        )
        self.children.append(child)
        return child

    # ------------------------------------------------------------------------------------------------- workers

    def start_worker(self, *options: str, from_nothing: bool = False) -> Worker:
        """Start a worker without waiting for it. The default options are `-P threads -c 50`."""
        self._started += 1
        worker = Worker(self, f"w{self._started}", options or ("-P", "threads", "-c", "50"), from_nothing)
        self.workers.append(worker)
        worker.child.start()
        return worker

    def replace(self, ended: Worker) -> None:
        """Start another in its place, in the background: the next test that needs it waits for it."""
        self.workers.remove(ended)
        self.start_worker()

    @contextmanager
    def without_sweeps(self) -> Iterator[None]:
        """Beat sleeps."""
        assert self.beat.pid
        os.kill(self.beat.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.beat.pid, signal.SIGCONT)

    def warm(self, worker: Worker) -> Worker:
        """Wait until the worker has driven a run: the model client is imported then."""
        if worker in self._warm:
            return worker
        worker.wait_for(" ready.")
        run_id = self.submit_to(worker, self.model.conversation("warm up"))
        self.wait_ended(run_id)
        self._warm.append(worker)
        return worker

    def wait_consuming(self, worker: Worker, run_id: str) -> None:
        """Until the worker takes messages (again). The run has ended: the message says nothing new."""
        task_id = str(uuid4())
        self.client.ask("deliver", run_id=run_id, queues=[worker.name], task_id=task_id)
        worker.wait_for(f"Task ravi.run[{task_id}] succeeded")

    # ---------------------------------------------------------------------------------------------------- runs

    def submit(self, about: Conversation) -> str:
        return str(self.client.ask("submit", text=about.text, agent=AGENT)["id"])

    def submit_to(self, worker: Worker, about: Conversation, **options: Any) -> str:
        """A run that `worker` leases. Where another one found it first, that one finishes it and the next try is a
        new conversation."""
        for _ in range(5):
            asked = {"text": about.text, "agent": AGENT, "hint": worker.name, **options}
            run_id = str(self.client.ask("submit", **asked)["id"])
            self._wait_leased(run_id)
            if worker.drives(self.owner(run_id)):
                return run_id
            about.release()
            self.completed(run_id)
            self.model.renew(about)
        raise AssertionError(f"{worker.name} took none of the runs that were meant for it")

    def _wait_leased(self, run_id: str) -> None:
        assert wait_until(lambda: self.run(run_id)["lease_epoch"] > 0, MARGIN_S), f"nobody took run {run_id}"

    def owner(self, run_id: str) -> str:
        """The engine, host:pid:…, that has the run's lease, or had the last one."""
        leased_by = self.run(run_id)["lease_owner"]  # asked first: with the lease's end the rows are there
        rows = [row for row in self.journal(run_id) if row["kind"] in ("run.started", "run.resumed")]
        return str(leased_by or rows[-1]["result"]["worker"])

    def wait_ended(self, run_id: str, timeout: float = MARGIN_S) -> dict[str, Any]:
        wait_until(lambda: self.run(run_id)["status"] in ENDED, timeout, poll=0.05)
        run = self.run(run_id)
        assert run["status"] in ENDED, f"run {run_id} is {run['status']} after {timeout:g} s: {run}"
        return run

    def completed(self, run_id: str, timeout: float = MARGIN_S) -> dict[str, Any]:
        run = self.wait_ended(run_id, timeout)
        assert run["status"] == "completed", run["error"]
        return run

    def events(self, run_id: str, after: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.ask("events", tree=run_id, after=after)
        return found

    def wait_streamed(self, run_id: str, timeout: float = MARGIN_S) -> list[dict[str, Any]]:
        """All frames, once the stream has ended."""
        give_up = time.monotonic() + timeout
        while time.monotonic() < give_up:
            frames = self.events(run_id)
            if frames and frames[-1]["type"] == "stream.done":
                return frames
        raise AssertionError(f"no stream.done within {timeout:g} s: {frames}")

    # ---------------------------------------------------------------------------------------------------- rows

    def query(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """On one connection, unless the database was restarted: rows are asked for every few milliseconds."""
        if self._database is not None:
            with suppress(psycopg.OperationalError):
                return self._database.execute(sql, params).fetchall()
            self._database.close()
        self._database = psycopg.connect(self.postgres.url, autocommit=True, row_factory=dict_row)
        return self._database.execute(sql, params).fetchall()

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()

    def run(self, run_id: str) -> dict[str, Any]:
        return self.query("SELECT * FROM ravi_run WHERE id = %s", run_id)[0]

    def journal(self, run_id: str) -> list[dict[str, Any]]:
        rows = self.query("SELECT * FROM ravi_journalentry WHERE run_id = %s ORDER BY seq", run_id)
        return [as_written(row) for row in rows]

    def kinds(self, run_id: str) -> list[str]:
        return [row["kind"] for row in self.journal(run_id)]
