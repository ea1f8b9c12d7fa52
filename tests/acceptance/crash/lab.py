"""The laboratory: PostgreSQL, Valkey, beat, a client and workers that are replaced as often as they die."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row

from project.services import Postgres, Valkey
from tests.acceptance.crash import rig
from tests.acceptance.crash.lab_app import ledger
from tests.acceptance.crash.plan import Plan
from tests.acceptance.crash.sleepers import Sleepers
from tests.acceptance.crash.story import Story
from tests.acceptance.crash.wishes import AMOUNT, GATED, done
from tests.support import forks, template
from tests.support.network import Proxy
from tests.support.patience import BOUND_S, seconds

HOST = "tests.acceptance.crash.host"
SETTINGS = "tests.acceptance.crash.lab_app.settings"
AGENT = "react/lab"
POLL_S = 0.03
PROXIES = 2  # between the workers and PostgreSQL
BY_SIGNAL = (0, -signal.SIGKILL, -signal.SIGTERM)  # how processes end here; those that end otherwise are broken


class SteadyPostgres(Postgres):
    """Cheap as for any test, but what it has committed survives its own crash."""

    def _options(self) -> list[str]:
        return [*super()._options(), "-c", "synchronous_commit=on", "-c", "max_connections=300"]

    def crash(self) -> None:
        """End at once, as with `pg_ctl stop -m immediate`; the next start recovers from the log."""
        assert self.pid
        os.kill(self.pid, signal.SIGQUIT)
        self.stop()


@dataclass(slots=True)
class Process:
    """A process that the host has forked."""

    kind: str
    name: str
    popen: forks.Popen
    log: Path
    started: float
    status: int | None = None  # once it has ended
    stopped: bool = False

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.status is None


class Lab:
    """`tend` replaces what has ended; everything here that waits calls it."""

    def __init__(
        self, folder: Path, *, workers: int, max_runs: int, slowest_s: float = 0.0, clock_s: float = 0.0, **env: str
    ) -> None:
        """`clock_s`: how far the database's clock is ahead of the site's. `env`: of the site's processes."""
        self.meanwhile: Callable[[], None] = lambda: None  # done while the client is at something
        self.folder = folder
        self.wanted = 0  # workers; none before there are tables
        self.persons_wanted = 0  # processes of people who answer by themselves
        self.persons: list[Process] = []
        self.stories: dict[str, Story] = {}  # by run
        self.plans: dict[str, Plan] = {}  # by root
        self.rooms: dict[str, int] = {}  # how many of its runs may be at work at once, by root
        self.workers: list[Process] = []
        self.ended: list[Process] = []
        self.beat: Process | None = None
        self._client: Process | None = None
        self._processes: list[Process] = []
        self._names = 0
        self._broken = 0  # processes that ended by themselves, one after the other
        self._stack = ExitStack()
        self.sleepers = Sleepers(self)
        self._enough = workers
        self._settings = {"CRASH_MAX_RUNS": str(max_runs), "CRASH_SLOWEST_S": str(slowest_s), **env}
        self._clock_s = clock_s
        self.proxies: list[Proxy] = []
        self._database: psycopg.Connection[dict[str, Any]] | None = None

    # ------------------------------------------------------------------------------------------- begin and end

    def __enter__(self) -> Self:
        try:
            self._enter()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _enter(self) -> None:
        for name in ("armed", "fired", "counts", "logs"):
            (self.folder / name).mkdir()
        cluster = template.cluster(self.folder / "postgresql")
        self.postgres = self._stack.enter_context(SteadyPostgres(cluster, fast=True))
        self.valkey = self._stack.enter_context(Valkey(self.folder / "valkey", fast=True))
        self.proxies = [self._stack.enter_context(Proxy("127.0.0.1", self.postgres.port)) for _ in range(PROXIES)]
        rig.make_site(self._connect(), self.postgres.password)
        self._start_host()
        migrate = self._start("migrate", "migrate")
        assert self.until(lambda: not migrate.running, BOUND_S) and migrate.status == 0, tail(migrate.log)
        self._disconnect()
        rig.copy(self.postgres.url)
        rig.rig(self._connect(), self._clock_s)
        self._disconnect()  # the clock is that of new connections
        self._stack.callback(self._disconnect)
        self.wanted = self._enough
        self.tend()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start_host(self) -> None:
        self._env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "DATABASE_URL": self.postgres.url.replace("//postgres:", f"//{rig.SITE}:"),
            "CRASH_PROXIES": ",".join(str(proxy.port) for proxy in self.proxies),
            "REDIS_URL": self.valkey.url,
            "RAVI_MODEL": "",
            "CRASH_FOLDER": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            **self._settings,
        }
        self._forks = forks.Forks(self.folder / "logs" / "host", self._listen)
        self._stack.callback(self._end_host)

    def _listen(self, path: Path, listener: socket.socket) -> None:
        with path.with_name("host.log").open("wb") as log:
            command = ["-m", HOST, "serve", path]
            self._host = forks.Popen(command, env=self._env, stdin=listener, stdout=log, stderr=log)

    def _end_host(self) -> None:
        """Its processes die with it."""
        self._host.kill()
        for popen in (self._host, *(process.popen for process in self._processes)):
            popen.wait(seconds(10))
        self._forks.close()

    # ----------------------------------------------------------------------------------------------- processes

    def tend(self) -> None:
        """Hear of what has ended, and replace it; wake who has slept long enough."""
        self._replace()
        if self.wanted:
            self.sleepers.tend()

    def _replace(self) -> None:
        for process in [process for process in self._processes if process.popen.poll() is not None]:
            self._processes.remove(process)
            self._end(process)
        self.workers = [worker for worker in self.workers if worker.running]
        if self.wanted:
            while len(self.awake()) < self.wanted:
                self._names += 1
                self.workers.append(self._start("worker", f"w{self._names}"))
            self.persons = [person for person in self.persons if person.running]
            while len(self.persons) < self.persons_wanted:
                self._names += 1
                self.persons.append(self._start("person", f"p{self._names}"))
            if self.beat is None or not self.beat.running:
                self.beat = self._start("beat", "beat")

    def awake(self) -> list[Process]:
        return [worker for worker in self.workers if worker.running and not worker.stopped]

    def _start(self, kind: str, name: str, stdin: int = subprocess.DEVNULL, stdout: int | None = None) -> Process:
        log = self.folder / "logs" / f"{name}.log"
        with log.open("ab") as output:
            popen = forks.Popen(
                ["-m", HOST, kind, name],
                forks=self._forks,
                env=self._env,
                stdin=stdin,
                stdout=stdout or output,
                stderr=output,
                text=True,
            )
        self._processes.append(Process(kind, name, popen, log, time.monotonic()))
        return self._processes[-1]

    def _end(self, process: Process) -> None:
        process.status = process.popen.returncode
        self.ended.append(process)
        self._broken = 0 if process.status in BY_SIGNAL else self._broken + 1
        if self._broken > 5:
            raise LabError(f"{process.name} does not live: it ended with {process.status}\n{tail(process.log)}")

    def signal(self, process: Process, number: signal.Signals) -> None:
        process.stopped = {signal.SIGSTOP: True, signal.SIGCONT: False}.get(number, process.stopped)
        process.popen.send_signal(number)

    def process(self, pid: int) -> Process:
        return next(each for each in (*self._processes, *self.ended) if each.pid == pid)

    @property
    def kills(self) -> int:
        """Workers and clients that ended by SIGKILL, by whoever sent it."""
        return sum(process.status == -signal.SIGKILL for process in self.ended)

    def until(self, condition: Callable[[], Any], timeout: float) -> bool:
        """Tend the processes until it holds; False when it did not in time."""
        give_up = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > give_up:
                return False
            self.tend()
            time.sleep(POLL_S)
        return True

    # -------------------------------------------------------------------------------------------------- client

    def ask(self, do: str, **arguments: Any) -> Any:
        """What a web process would do. When that process is killed at it, another does it again."""
        for _ in range(200):
            answer = self._ask_once({"do": do, **arguments})
            if answer is not None and "error" not in answer:
                return answer["result"]
            if answer is not None and not answer["again"]:
                raise LabError(answer["error"])
            self.tend()
            self.meanwhile()
            time.sleep(POLL_S * 3)
        raise LabError(f"nobody could {do}: {answer}")

    def _ask_once(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        if self._client is None or not self._client.running:
            self._client = self._start("client", "client", subprocess.PIPE, subprocess.PIPE)
            for stream in (self._client.popen.stdin, self._client.popen.stdout):
                self._stack.callback(_close, stream)
        client = self._client
        to, back = client.popen.stdin, client.popen.stdout
        assert to and back
        try:
            to.write(json.dumps(asked) + "\n")
            to.flush()
        except BrokenPipeError:
            line = ""
        else:
            readable, give_up = False, time.monotonic() + BOUND_S
            while not readable and time.monotonic() < give_up:
                readable = bool(select.select([back], [], [], POLL_S)[0])
                self.tend()  # who is asleep may hold what is waited for
                self.meanwhile()
            line = back.readline() if readable else ""
        if not line:
            self.until(lambda: not client.running, seconds(5))
            self.signal(client, signal.SIGKILL)
            self._client = None
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def submit(
        self, story: Story, *dies: str, hinted: bool = True, agent: str = AGENT, session: str | None = None
    ) -> str:
        """Start a run; a process dies for it at each of these points in turn: "name.before" or "name.after", perhaps
        ":times" behind it."""
        run_id = str(uuid4())
        self.stories[run_id] = story
        if dies:
            (self.folder / "armed" / run_id).write_text("\n".join(dies))
        self.ask("submit", run_id=run_id, agent=agent, text=story.text, budget=None, hinted=hinted, session=session)
        return run_id

    def plant(self, plan: Plan, *, room: int, spare_tokens: int) -> str:
        """Start the root of a planned tree. `room` is how many of its runs may be at work at once."""
        run_id = str(uuid4())
        self.stories[run_id], self.plans[run_id], self.rooms[run_id] = plan.story, plan, room
        budget = {"max_agents": room, "max_tokens": plan.tokens + spare_tokens}
        self.ask("submit", run_id=run_id, agent=plan.agent, text=plan.text, budget=budget)
        return run_id

    def decide(self, request: dict[str, Any], *, caller: bool = False) -> None:
        """Answer for an uncertain effect what the ledger says; `caller`: inside a transaction of the site's own."""
        run_id, number = str(request["run_id"]), request["arguments"]["number"]
        lines = [line for line in self.ledger() if (line["run"], line["number"]) == (run_id, number)]
        if any(line["kind"] == request["tool"] for line in lines):
            amount = request["arguments"].get("amount", AMOUNT)
            said = done(request["tool"], number, amount) if request["tool"] in GATED else f"{request['tool']} {number}"
            self.ask("answer", request=str(request["id"]), outcome="happened", result=said, caller=caller)
        else:
            self.ask("answer", request=str(request["id"]), outcome="run_again", caller=caller)

    def undecided(self) -> list[dict[str, Any]]:
        """Uncertain effects that wait for a person, and may be decided by now."""
        return self.query(
            "SELECT * FROM ravi_humanrequest WHERE status = 'pending' AND kind = 'uncertain' "
            "AND coalesce(not_before, now()) <= now()"
        )

    def struck(self, run_id: str) -> bool:
        """Whether somebody died or fell asleep at each of the points that were asked for."""
        return self.struck_once(run_id) and not (self.folder / "armed" / run_id).exists()

    def struck_once(self, run_id: str) -> bool:
        return any((self.folder / "fired").glob(f"{run_id}.*"))

    # ---------------------------------------------------------------------------------------------------- rows

    def query(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """The database may be away: tried again for a while."""
        for _ in range(300):
            try:
                done = self._connect().execute(sql, params)
                return done.fetchall() if done.description else []
            except psycopg.OperationalError:
                self._disconnect()
                self._replace()
                time.sleep(0.1)
        raise LabError("the database does not come back")

    def _connect(self) -> psycopg.Connection[dict[str, Any]]:
        if self._database is None:
            writes = "-c default_transaction_read_only=off"
            self._database = psycopg.connect(self.postgres.url, autocommit=True, row_factory=dict_row, options=writes)
        return self._database

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def run(self, run_id: str) -> dict[str, Any]:
        return self.query("SELECT * FROM ravi_run WHERE id = %s", run_id)[0]

    @property
    def takeovers(self) -> int:
        return int(self.query("SELECT count(*) AS n FROM lab_takeover")[0]["n"])

    def ledger(self, name: str = ledger.LEDGER) -> list[dict[str, Any]]:
        return ledger.read(self.folder, name)


class LabError(Exception):
    """The laboratory itself does not work."""


def tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def _close(stream: Any) -> None:
    with suppress(OSError):  # what was left for a dead process goes nowhere
        stream.close()
