"""From submitting a run over HTTP to its first token on a websocket: at idle, and beside a backlog."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from statistics import median, quantiles

from django.contrib.auth import get_user_model
from django.db import transaction
from rest_framework.authtoken.models import Token
from websockets.sync.client import connect

from benchmarks.durability import WAITER, backlog
from benchmarks.in_flight import ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack, web
from project.process import ProcessError, wait_until
from ravi_django import submit
from ravi_django.models import Run, Status

AGENT = "react/bench-instant"
WARM_UP = 3
FRAME_TIMEOUT_S = 60.0


class Client:
    """A program with a token, on a kept connection."""

    def __init__(self, address: str) -> None:
        user = get_user_model().objects.get_or_create(username="bench")[0]
        self._token = Token.objects.get_or_create(user=user)[0].key
        self._address = address
        self._http = http.client.HTTPConnection(address, timeout=30)

    def post(self, path: str, body: dict[str, str]) -> dict[str, str]:
        headers = {"Authorization": f"Token {self._token}", "Content-Type": "application/json"}
        self._http.request("POST", f"/ravi/{path}", json.dumps(body), headers)
        response = self._http.getresponse()
        answer = response.read()
        if response.status != 201:
            raise ProcessError(f"POST {path}: {response.status} {answer[:500]!r}")
        found: dict[str, str] = json.loads(answer)
        return found

    def healthy(self) -> bool:
        try:
            self._http.request("GET", "/ravi/agents/")
            self._http.getresponse().read()
        except OSError:
            self._http.close()
            return False
        return True

    def once(self) -> tuple[float, float]:
        """Submit, then watch; milliseconds to the first frame and to the first token."""
        ticket = self.post("tickets/", {})["ticket"]
        begun = time.perf_counter()
        run = self.post("runs/", {"agent": AGENT, "input": "Say something."})["id"]
        first_frame = first_token = 0.0
        with connect(f"ws://{self._address}/ws/ravi/runs/{run}/?ticket={ticket}", proxy=None) as socket:
            while True:
                frame = json.loads(socket.recv(timeout=FRAME_TIMEOUT_S))
                taken = (time.perf_counter() - begun) * 1000
                first_frame = first_frame or taken
                if frame["type"] == "text.delta":
                    first_token = first_token or taken
                if frame["type"] == "stream.done":
                    return first_frame, first_token

    def close(self) -> None:
        self._http.close()


def measure(stack: Stack, runs: int, pending: int) -> Iterator[Figure]:
    with ready_worker(stack, [AGENT], BENCH_SCRIPTED_ALONE="1"), web(stack) as address:
        client = Client(address)
        if not wait_until(client.healthy, 30):
            raise ProcessError(f"the site on {address} did not answer")
        for _ in range(WARM_UP):
            client.once()
        yield from _figures("", [client.once() for _ in range(runs)])
        beside = []
        for _ in range(max(2, runs // 6)):
            backlog(pending)
            beside.append(client.once())
        yield from _figures(f"_beside_{pending}_pending", beside)
        beside = []
        for _ in range(max(2, runs // 6)):
            crowd(10 * pending)
            client.healthy()  # the kept connection may have been closed meanwhile
            beside.append(client.once())
        yield from _figures(f"_beside_{10 * pending}_of_another", beside)
        client.close()


def crowd(runs: int) -> None:
    """Submit runs of one other user until so many are ready. The worker gets a hint for each and drives them."""
    user = get_user_model().objects.get_or_create(username="crowd")[0]
    with transaction.atomic():
        for _ in range(runs - Run.objects.filter(owner=user, status=Status.PENDING).count()):
            submit(WAITER, "0", user=user)


def _figures(beside: str, samples: list[tuple[float, float]]) -> Iterator[Figure]:
    for name, taken in zip(("first_frame", "first_token"), zip(*samples, strict=True), strict=True):
        p95 = quantiles(taken, n=20, method="inclusive")[-1]
        yield Figure(f"{name}{beside}_p50", None, median(taken), "ms")
        yield Figure(f"{name}{beside}_p95", None, p95, "ms")
