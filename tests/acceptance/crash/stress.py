"""`make chaos STRESS=<seconds>`: six people do all that a site lets them do, while its workers are killed and stopped.

Two web processes, three workers and beat; first on PostgreSQL, then on SQLite. Each user submits, steers, interrupts,
answers, cancels, retries, forks, uploads and discards over HTTP; the site prunes, erases and deletes users and
conversations meanwhile. When it is quiet again, nothing may be left over. Needs no model: the rehearsal model answers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import django
import httpx

from project.process import Child
from project.services import Postgres, Valkey, free_port
from tests.support import template
from tests.support.patience import seconds
from tests.support.site_process import ROOT, ForkedChild

KINDS = ("postgresql", "sqlite")
PEOPLE, WEBS, WORKERS = 6, 2, 3
TROUBLE_S = (2.0, 6.0)  # between two faults
ASLEEP_S = (1.0, 8.0)  # of a stopped worker: sometimes longer than its lease
QUIET_S = seconds(120)
TEXTS = ("hello", "What is 6 * 7?", "Send an invoice of 100 to ACME", "Send a mail to ann@example.com: See you.")
WEIGHTS = {
    "submit": 12, "message": 12, "answer": 14, "cancel": 4, "retry": 3, "fork": 5, "upload": 4, "discard": 2,
    "delete_conversation": 3, "delete_user": 1, "erase": 1, "prune": 1,
}  # fmt: skip


class Stress:
    """The site's processes, and what was done to it."""

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        self.folder, self.kind, self.random = folder, kind, Random(seed)
        self.webs: list[str] = []
        self.workers: list[Child] = []
        self.kills = self.faults = self._names = 0
        self.made: Counter[str] = Counter()
        self.violations: list[str] = []
        self.over = threading.Event()
        self._stack = ExitStack()

    @contextmanager
    def site(self) -> Iterator[None]:
        with self._stack:
            valkey = self._stack.enter_context(Valkey(self.folder / "valkey", fast=True))
            if self.kind == "postgresql":
                cluster = template.cluster(self.folder / "postgresql")
                url = self._stack.enter_context(Postgres(cluster, fast=True)).url
            else:
                url = f"sqlite:///{template.sqlite(self.folder / 'site.sqlite3')}"
            environment = {"DATABASE_URL": url, "REDIS_URL": valkey.url, "SITE_MEDIA": str(self.folder / "media")}
            environment |= {
                "DJANGO_SETTINGS_MODULE": "tests.support.site_settings",
                "RAVI_MODEL": "",
                "LOG_LEVEL": "WARNING",
            }
            os.environ.update(environment)
            django.setup()
            for number in range(WEBS):
                port = free_port()
                listen = ("--host", "127.0.0.1", "--port", str(port), "--lifespan", "off")
                self._child(f"web{number}", "-m", "uvicorn", "project.asgi:application", *listen, kind=Child)
                self.webs.append(f"http://127.0.0.1:{port}/ravi/")
            schedule = ("--schedule", str(self.folder / "schedule"), "--pidfile=")
            self._child("beat", "-m", "celery", "-A", "project", "beat", *schedule)
            self._tend()
            yield

    def _child(self, name: str, *command: str, kind: type[Child] = ForkedChild) -> Child:
        child = kind(
            name,
            [sys.executable, *command],
            log=self.folder / f"{name}.log",
            pid_file=self.folder / f"{name}.pid",
            cwd=ROOT,
            stop_signals=((signal.SIGTERM, seconds(8)),),
        )
        child.start()
        self._stack.callback(child.stop)
        return child

    def _tend(self) -> None:
        self.workers = [worker for worker in self.workers if worker.running]
        while len(self.workers) < WORKERS:
            self._names += 1
            name = f"w{self._names}"
            options = ("-n", f"{name}@stress", "-Q", "ravi", "-P", "threads", "-c", "50")
            self.workers.append(self._child(name, "-m", "celery", "-A", "project", "worker", *options))

    def play(self, seconds_: float) -> None:
        """All people at once for so long, then peace."""
        until = time.monotonic() + seconds_
        with ThreadPoolExecutor(PEOPLE) as people:
            lives = [people.submit(Person(self, number).live) for number in range(PEOPLE)]
            try:
                self._trouble(until)
            finally:
                self.over.set()
            for life in lives:
                life.result()

    def _trouble(self, until: float) -> None:
        """Processes are started on this thread alone: the kernel ends a child with the thread that started it."""
        wakes: list[tuple[float, Child]] = []
        fault_at = time.monotonic() + self.random.uniform(*TROUBLE_S)
        while (now := time.monotonic()) < until or wakes:
            for due in [each for each in wakes if now >= each[0]]:
                wakes.remove(due)
                _signal(due[1], signal.SIGCONT)
            if now >= fault_at and now < until:
                fault_at = now + self.random.uniform(*TROUBLE_S)
                worker = self.random.choice(self.workers)
                number = self.random.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
                _signal(worker, number)
                self.faults += 1
                self.kills += number == signal.SIGKILL
                if number == signal.SIGSTOP:
                    wakes.append((now + self.random.uniform(*ASLEEP_S), worker))
            self._tend()
            self.over.wait(0.05)

    def wait_for_quiet(self) -> None:
        """Cancel what waits for people; then runs, erasures and streams come to their end."""
        from ravi_django.models import TERMINAL, Erasure, Run
        from tests.support.world import delete_unused

        boss = Person(self, PEOPLE)
        give_up = time.monotonic() + QUIET_S
        while time.monotonic() < give_up:
            self._tend()
            live = list(Run.objects.exclude(status__in=TERMINAL))
            for run in live:
                boss.post(f"runs/{run.id}/cancel/", {})
            ended = Run.objects.filter(parent=None, published_at=None).exists()
            if not live and not ended and not Erasure.objects.exists():
                for worker in self.workers:  # none sweeps while the rows are looked at
                    worker.stop()
                while delete_unused():
                    pass
                return
            time.sleep(0.5)
        self.violations += [f"run {run.id} is {run.status}" for run in live]
        self.violations += [f"erasure {row.pk} is not done" for row in Erasure.objects.all()]
        unpublished = Run.objects.filter(parent=None, published_at=None)
        self.violations += [f"the stream of {run.id} has not ended" for run in unpublished]

    def look(self) -> None:
        self.violations += left_over()
        log = self.folder / "postgresql" / "postgresql.log"
        if log.exists():
            deadlocks = log.read_text().split("deadlock detected")[1:]
            self.violations += [f"deadlock detected{text[:3000]}" for text in deadlocks]


def _signal(worker: Child, number: signal.Signals) -> None:
    if worker.running and worker.pid:
        os.kill(worker.pid, number)


class Person:
    """A user and what they do; after a deletion another user."""

    def __init__(self, stress: Stress, number: int) -> None:
        self.stress, self.number, self.lives = stress, number, 0
        self.random = Random(stress.random.random())
        self.http = httpx.Client(timeout=seconds(60), trust_env=False)
        self.boss = ("boss", "boss")
        self._be_born()

    def _be_born(self) -> None:
        from django.contrib.auth import get_user_model

        users = get_user_model().objects
        if not users.filter(username="boss").exists():
            users.create_superuser("boss", "boss@example.com", "boss")
        self.lives += 1
        self.name = f"person{self.number}-{self.lives}"
        self.user = users.create_user(self.name, f"{self.name}@example.com", "secret")

    def live(self) -> None:
        from django.db import connections

        while not self.stress.over.is_set():
            deed = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.stress.made[deed] += 1
            try:
                getattr(self, deed)()
            except Exception:
                self.stress.violations.append(f"{deed}: {traceback.format_exc(limit=-6)}")
            finally:
                connections.close_all()
        self.http.close()

    # ----------------------------------------------------------------------------------------------------- HTTP

    def ask(self, method: str, path: str, as_boss: bool = False, **options: Any) -> Any:
        """The JSON of the answer; None for a refusal. An answer of 5xx is a violation."""
        address = self.random.choice(self.stress.webs)
        auth = self.boss if as_boss else (self.name, "secret")
        response = self.http.request(method, address + path, auth=auth, **options)
        if response.status_code >= 500:
            self.stress.violations.append(f"{method} {path}: {response.status_code} {response.text[:200]}")
        return response.json() if response.is_success and response.content else None

    def post(self, path: str, body: Any, as_boss: bool = True) -> Any:
        return self.ask("POST", path, as_boss, json=body)

    def one_of(self, path: str) -> dict[str, Any] | None:
        rows = (self.ask("GET", path) or {}).get("results")
        return self.random.choice(rows) if rows else None

    # ------------------------------------------------------------------------------------------------- the deeds

    def submit(self) -> None:
        body: dict[str, Any] = {"agent": "react/assistant", "input": self.random.choice(TEXTS)}
        if self.random.random() < 0.3 and (file := self.one_of("files/")):
            body["input"] = [{"type": "text", "text": body["input"]}, {"type": "document", "file": file["id"]}]
        if self.random.random() < 0.3:
            body["agent"] = "orchestrator/team"
        self.post("runs/", body, as_boss=False)

    def message(self) -> None:
        if session := self.one_of("sessions/"):
            on_busy = self.random.choice(["steer", "interrupt", "enqueue", "reject"])
            body = {"text": self.random.choice(TEXTS), "on_busy": on_busy}
            self.post(f"sessions/{session['id']}/messages/", body, as_boss=False)

    def answer(self) -> None:
        as_boss = self.random.random() < 0.7
        pending = (self.ask("GET", "requests/?status=pending", as_boss) or {}).get("results", [])
        for request in pending[-3:]:
            if not request["actions"]:
                continue
            action = self.random.choice(request["actions"])
            more = {
                "answer": {"text": "yes"},
                "edit": {"arguments": request["arguments"]},
                "resolve": {"outcome": self.random.choice(["run_again", "fail"])},
            }
            self.post(f"requests/{request['id']}/answer/", {"action": action, **more.get(action, {})}, as_boss)

    def _of_a_run(self, path: str, body: dict[str, Any]) -> None:
        if run := self.one_of("runs/"):
            self.post(f"runs/{run['id']}/{path}/", body, as_boss=False)

    def cancel(self) -> None:
        self._of_a_run("cancel", {})

    def retry(self) -> None:
        self._of_a_run("retry", {})

    def fork(self) -> None:
        self._of_a_run("fork", self.random.choice([{"after_seq": self.random.randint(1, 9)}, {"input": "again"}]))

    def upload(self) -> None:
        content = self.random.randbytes(2000).hex().encode()
        self.ask("POST", "files/", files={"file": ("note.txt", content, "text/plain")})

    def discard(self) -> None:
        if file := self.one_of("files/"):
            self.ask("DELETE", f"files/{file['id']}/")

    def delete_conversation(self) -> None:
        if session := self.one_of("sessions/"):
            self.ask("DELETE", f"sessions/{session['id']}/")

    def delete_user(self) -> None:
        self.user.delete()
        self._be_born()

    def erase(self) -> None:
        from django.core.management import CommandError, call_command

        with suppress(CommandError):  # runs are live: the sweep continues
            call_command("ravi_erase", self.name, stdout=StringIO())

    def prune(self) -> None:
        from django.core.management import call_command

        call_command("ravi_prune", "--older-than", "20s", stdout=StringIO())


# ------------------------------------------------------------------------------------------------ what must be true


def left_over() -> Iterator[str]:
    """What is wrong with a site that is quiet."""
    from django.conf import settings
    from django.db.models import Count, Max, Min

    from project.models import Invoice
    from ravi_django.models import BudgetAccount, InboxMessage, JournalEntry, RaviFile, Reservation, Run, Session, Turn

    rows = JournalEntry.objects.values("run").annotate(rows=Count("seq"), first=Min("seq"), last=Max("seq"))
    following = dict(Run.objects.values_list("id", "next_seq"))
    for row in rows:
        if row["rows"] != row["last"] - row["first"] + 1 or following.get(row["run"]) != row["last"] + 1:
            yield f"the journal of {row['run']} has a hole or no run: {row}, next_seq {following.get(row['run'])}"
    for model in (JournalEntry, InboxMessage):
        if count := model.objects.exclude(run__in=Run.objects.all()).count():
            yield f"{count} rows of {model.__name__} have no run"
    if count := Turn.objects.exclude(session__in=Session.objects.all()).count():
        yield f"{count} turns have no conversation"
    if count := Turn.objects.filter(entry_seq__isnull=False, entry__kind=None).count():
        yield f"{count} turns refer to a row that is gone"
    for owned in (Session, Run, RaviFile):
        if count := owned.objects.filter(owner=None).count():
            yield f"{count} rows of {owned.__name__} have no owner"
    if count := Reservation.objects.count():
        yield f"{count} reservations are left"
    held = BudgetAccount.objects.exclude(reserved_tokens=0, reserved_turns=0)
    yield from (f"account {account.key} holds {account.reserved_tokens} tokens" for account in held)
    twice = Invoice.objects.values("idempotency_key").annotate(times=Count("id")).filter(times__gt=1)
    yield from (f"invoice {row['idempotency_key']} was sent {row['times']} times" for row in twice)
    media = Path(settings.MEDIA_ROOT)
    stored = {str(path.relative_to(media)) for path in media.rglob("*") if path.is_file()}
    known = set(RaviFile.objects.values_list("content", flat=True))
    yield from (f"file {name} has no row" for name in stored - known)
    yield from (f"the content of {name} is gone" for name in known - stored)


def one(kind: str, seconds_: float, seed: int) -> dict[str, int]:
    """One stress in this process, which has read no settings yet."""
    with TemporaryDirectory(prefix="ravi-stress-") as folder:
        os.chmod(folder, 0o755)  # PostgreSQL runs as another user
        stress = Stress(Path(folder), kind, seed)
        with stress.site():
            stress.play(seconds_)
            stress.wait_for_quiet()
            stress.look()
            from ravi_django.models import JournalEntry

            takeovers = JournalEntry.objects.filter(kind="run.resumed").count()
    print(f"{kind}: {dict(stress.made)}", flush=True)
    print("".join(f"violation: {kind}: {violation}\n" for violation in stress.violations[:50]), end="", flush=True)
    counts = {"runs": stress.made["submit"] + stress.made["message"], "kills": stress.kills, "takeovers": takeovers}
    return {**counts, "faults": stress.faults, "violations": len(stress.violations)}


def both(seconds_: float, seed: int) -> int:
    """Half of the time on each database, each in a process of its own. Returns the exit status."""
    total: Counter[str] = Counter()
    for kind in KINDS:
        with get_context("spawn").Pool(1) as pool:
            total.update(pool.apply(one, (kind, seconds_ / len(KINDS), seed)))
    names = ("runs", "kills", "takeovers", "faults", "violations")
    print("chaos: " + " ".join(f"{name}={total[name]}" for name in names), flush=True)
    return 1 if total["violations"] else 0
