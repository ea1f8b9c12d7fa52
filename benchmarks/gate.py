"""Trees of runs at a provider that takes so many requests a minute and refuses the rest by 429."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

from django.contrib.auth import get_user_model
from django.db import transaction

from benchmarks.in_flight import ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack
from project.process import ProcessError, wait_until
from ravi_django import submit
from ravi_django.models import JournalEntry, ModelLimit, Run, Status
from tests.support.openai_server import Body, OpenAIServer, Reply

DELAY_S = 0.2  # of an answer
LEARN_S = 30.0  # whose refusals do not count
TREE = "test/bench-storm"
CHILDREN = 10


class Provider:
    """A bucket of a tenth of `per_min` requests that refills by `per_min`, by its own clock."""

    def __init__(self, per_min: int) -> None:
        self.per_min, self.capacity, self.retry_after = per_min, per_min / 10, True
        self.taken: list[float] = []  # times of requests
        self.refused: list[float] = []
        self._tokens, self._at, self._lock = self.capacity, time.monotonic(), threading.Lock()

    def __call__(self, body: Body) -> Reply:
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self.capacity, self._tokens + (now - self._at) * self.per_min / 60)
            self._at = now
            if self._tokens >= 1:
                self._tokens -= 1
                self.taken.append(now)
                return Reply(text="Done.")
            self.refused.append(now)
        headers = {"retry-after": "1"} if self.retry_after else {}
        code = "rate_limit_exceeded"
        return Reply(status=429, text="slow down", error_type="requests", error_code=code, headers=headers)

    def forget(self) -> None:
        with self._lock:
            self.taken.clear()
            self.refused.clear()
            self._tokens, self._at = self.capacity, time.monotonic()


def measure(stack: Stack, trees: int, workers: int, per_min: int) -> Iterator[Figure]:
    """With and without Retry-After, and while half of the workers are killed."""
    provider = Provider(per_min)
    with OpenAIServer(provider, delay=DELAY_S) as server, ExitStack() as opened:
        options = {"BENCH_MODEL_URL": server.base_url, "BENCH_HEARTBEAT_S": "2", "BENCH_LEASE_S": "6"}
        children = [
            opened.enter_context(ready_worker(stack, ["react/bench-litellm"], f"worker-{number}", **options))
            for number in range(workers)
        ]
        yield from _storm(provider, trees, "retry_after")
        provider.retry_after = False
        yield from _storm(provider, trees, "bare")
        for child in children[: workers // 2]:
            assert child.pid
            kill = threading.Timer(max(1.0, trees / per_min * 60 * 3), os.kill, [child.pid, signal.SIGKILL])
            opened.callback(kill.cancel)
            kill.start()
        yield from _storm(provider, trees, "killed")


def _storm(provider: Provider, trees: int, name: str) -> Iterator[Figure]:
    provider.forget()
    ModelLimit.objects.all().delete()
    user = get_user_model().objects.get_or_create(username="bench")[0]
    needed = trees * (CHILDREN + 2)
    bound_s = max(1.0, (needed - provider.capacity) * 60 / provider.per_min)
    with transaction.atomic():
        ids = [submit(TREE, "Ask them.", user=user).id for _ in range(trees)]
    rows = Run.objects.filter(id__in=ids)
    if not wait_until(lambda: not rows.filter(finished_at=None).exists(), 3 * bound_s + 60, poll=0.5):
        raise ProcessError(f"{rows.filter(finished_at=None).count()} of {trees} trees did not end")
    begun, ended = provider.taken[0], time.monotonic()
    refused = [moment for moment in provider.refused if moment > begun + LEARN_S]
    taken = [moment for moment in provider.taken if moment > begun + LEARN_S]
    allowed = provider.capacity + (provider.taken[-1] - begun) * provider.per_min / 60
    runs = Run.objects.filter(root_id__in=ids) | rows
    pauses = JournalEntry.objects.filter(run__in=runs, kind="run.suspended", result__waiting_on__0__kind="provider")
    suspended = pauses.count()
    failed = runs.exclude(status=Status.COMPLETED).count()
    yield Figure(f"gate_{name}_failed", None, failed, "runs")
    yield Figure(f"gate_{name}_time", None, (ended - begun) / bound_s, "of the bound")
    yield Figure(f"gate_{name}_used", None, len(provider.taken) / allowed, "of the limit")
    yield Figure(f"gate_{name}_refused_first", None, len(provider.refused) - len(refused), "in 30 s")
    yield Figure(f"gate_{name}_refused", None, len(refused) / max(1, len(refused) + len(taken)), "of later ones")
    yield Figure(f"gate_{name}_suspended", None, suspended / needed, "of calls")
