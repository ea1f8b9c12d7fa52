"""A run that waits for a person: how soon they see what is asked, and how soon the run goes on once they answered."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from types import TracebackType
from typing import Any, Self

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.authtoken.models import Token
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from benchmarks.in_flight import ready_worker
from benchmarks.people_agents import APPROVERS
from benchmarks.report import Figure
from benchmarks.stack import Stack, web
from project.process import ProcessError, wait_until
from ravi_django import people, submit
from ravi_django.engine.worker.engine import Engine
from ravi_django.kernel import ConflictError
from ravi_django.models import HumanRequest, JournalEntry

BY_MODEL, BY_CODE = "react/bench-payer", "test/bench-approval"
WARM_UP = 3
POLL_S = 0.003
TIMEOUT_S = 60.0


class Person:
    """Somebody who may approve, with a token on a kept connection."""

    def __init__(self, address: str, user: Any) -> None:
        self._token = Token.objects.get_or_create(user=user)[0].key
        self._address = address
        self._http = http.client.HTTPConnection(address, timeout=30)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Token {self._token}", "Content-Type": "application/json"}
        self._http.request(method, f"/ravi/{path}", None if body is None else json.dumps(body), headers)
        response = self._http.getresponse()
        answer = response.read()
        if response.status not in (200, 201):
            raise ProcessError(f"{method} {path}: {response.status} {answer[:500]!r}")
        return json.loads(answer)

    def healthy(self) -> bool:
        try:
            self.ask("GET", "agents/")
        except OSError:
            self._http.close()
            return False
        return True

    def socket(self, path: str) -> ClientConnection:
        ticket = self.ask("POST", "tickets/", {})["ticket"]
        return connect(f"ws://{self._address}/ws/ravi/{path}?ticket={ticket}", proxy=None)

    def close(self) -> None:
        self._http.close()


class Watch(threading.Thread):
    """A socket's frames, each with the time at which it came."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(name="bench-watch", daemon=True)
        self._socket = socket
        self._frames: list[tuple[float, str]] = []

    def run(self) -> None:
        try:
            while True:
                frame = str(self._socket.recv())
                self._frames.append((time.time(), frame))
        except (ConnectionClosed, OSError):
            return

    def first(self, *words: str) -> float:
        """When the first frame with all these words in it came."""
        if not wait_until(lambda: self._find(words) is not None, TIMEOUT_S, poll=POLL_S):
            raise ProcessError(f"no frame with {words} came; the last was {self._frames[-1:]}")
        return self._find(words) or 0.0

    def _find(self, words: tuple[str, ...]) -> float | None:
        return next((at for at, frame in list(self._frames) if all(word in frame for word in words)), None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self.join(5)


@dataclass(frozen=True, slots=True)
class Wait:
    """Milliseconds of one run that waited. Opening from the model's call on, the rest from sending the answer on."""

    seen_by_rest: float
    seen_by_socket: float
    answered: float  # the response
    resumed: float  # the run's next row of the journal is committed
    called: float  # the tool begins
    shown: float  # its result is on the run's socket


def waits(stack: Stack, samples: int) -> list[Figure]:
    """At idle, through broker, worker and web server, one run after the other."""
    owner, approver = _approvers(2)  # nobody decides on a run of their own
    with ready_worker(stack, ["react/bench-instant"], BENCH_SCRIPTED_ALONE="1"), web(stack) as address:
        asking, person = Person(address, owner), Person(address, approver)
        if not wait_until(person.healthy, 30):
            raise ProcessError(f"the site on {address} did not answer")
        with Watch(person.socket("requests/")) as inbox:
            found = [_once(asking, person, inbox) for _ in range(samples + WARM_UP)][WARM_UP:]
        asking.close()
        person.close()
    return [
        *_figures("request_seen_by_rest", [one.seen_by_rest for one in found]),
        *_figures("request_seen_by_socket", [one.seen_by_socket for one in found]),
        *_figures("answer_response", [one.answered for one in found]),
        *_figures("answer_to_next_row", [one.resumed for one in found]),
        *_figures("answer_to_tool", [one.called for one in found]),
        *_figures("answer_to_socket", [one.shown for one in found]),
    ]


def _once(owner: Person, person: Person, inbox: Watch) -> Wait:
    run = owner.ask("POST", "runs/", {"agent": BY_MODEL, "input": "Pay them."})["id"]
    request = _until(lambda: person.ask("GET", f"requests/?status=pending&run={run}")["results"])[0]
    seen = time.time()
    asked_at = request["arguments"]["asked_at"]
    noticed = inbox.first(request["id"])
    _until(lambda: owner.ask("GET", f"runs/{run}/")["status"] == "suspended")
    with Watch(owner.socket(f"runs/{run}/")) as frames:
        frames.first(request["id"])
        before = JournalEntry.objects.filter(run_id=run).latest("seq").seq
        begun = time.time()
        person.ask("POST", f"requests/{request['id']}/answer/", {"action": "approve"})
        answered = time.time()
        shown = frames.first("tool_result", "c1")
        frames.first("stream.done")
    row = JournalEntry.objects.filter(run_id=run, seq__gt=before).earliest("seq")
    output = owner.ask("GET", f"runs/{run}/")["output"]
    called = float(output if isinstance(output, str) else output["text"])
    ends = (answered, row.finished_at.timestamp(), called, shown)
    return Wait((seen - asked_at) * 1000, (noticed - asked_at) * 1000, *((end - begun) * 1000 for end in ends))


def _until(condition: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        if time.monotonic() > give_up:
            raise ProcessError(f"it did not come to that in {TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)
    return found


# --------------------------------------------------------------------------------------------- the service itself


def answers(samples: int) -> list[Figure]:
    """`answer` by itself, in this process: the one that counts, and one that comes too late."""
    first, late = _approvers(2)
    requests = [asyncio.run(_waiting()) for _ in range(samples + WARM_UP)]
    won, lost = [], []
    for request in requests:
        won.append(_timed(lambda request=request: people.answer(request, "approve", by=first)))
        lost.append(_timed(lambda request=request: _refused(request, late)))
    request = asyncio.run(_waiting())
    with CaptureQueriesContext(connection) as winning:
        people.answer(request, "approve", by=first)
    with CaptureQueriesContext(connection) as losing:
        _refused(request, late)
    return [
        *_figures("answer_call", won[WARM_UP:]),
        Figure("answer_call_queries", None, float(len(winning)), "queries"),
        *_figures("answer_conflict", lost[WARM_UP:]),
        Figure("answer_conflict_queries", None, float(len(losing)), "queries"),
    ]


async def _waiting() -> HumanRequest:
    """The open request of a run that is suspended on it."""
    engine = Engine()
    try:
        run = await engine.database.call(submit, BY_CODE, "Pay them.")
        await engine.drive(run.id)
        found: HumanRequest = await HumanRequest.objects.aget(run_id=run.id, status="pending")
        return found
    finally:
        await engine.close()


def _refused(request: HumanRequest, user: Any) -> None:
    try:
        people.answer(request, "approve", by=user)
    except ConflictError:
        return
    raise ProcessError(f"request {request.id} was answered twice")


def _timed(function: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    function()
    return (time.perf_counter() - begun) * 1000


def _approvers(count: int) -> list[Any]:
    group = Group.objects.get_or_create(name=APPROVERS)[0]
    users = [get_user_model().objects.get_or_create(username=f"approver-{number}")[0] for number in range(count)]
    group.user_set.add(*users)
    return users


def _figures(name: str, samples: list[float]) -> list[Figure]:
    p95 = quantiles(samples, n=20, method="inclusive")[-1]
    return [Figure(f"{name}_p50", None, median(samples), "ms"), Figure(f"{name}_p95", None, p95, "ms")]


def measure(stack: Stack, samples: int) -> Iterator[Figure]:
    yield from waits(stack, samples)
    yield from answers(samples)
