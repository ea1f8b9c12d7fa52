"""The bill against the provider's: requests that are stopped, cut, left for a fallback, or lost with a killed worker.
The provider counts with litellm's tokenizer what it has read and sent, also of those.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from django.db import connections

from benchmarks.report import Figure
from benchmarks.stack import Stack, require, worker
from project.process import Child, ProcessError, wait_until
from ravi_django import submit
from ravi_django.calls.llm.loading import load_litellm
from ravi_django.models import JournalEntry, Run, Status, WorkerProcess
from ravi_django.runs.lifecycle import endings
from tests.support.openai_server import Body, OpenAIServer, Reply

WORDS, WORD_S = 60, 0.02  # of an answer
AT_ONCE = 24  # runs
WORKERS = 2
MOST_HITS = 3  # of one run by kills
TIMEOUT_S = 300.0
ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.BLOCKED)
LEASE = {"BENCH_LEASE_S": "3", "BENCH_HEARTBEAT_S": "0.5", "BENCH_SWEEP_S": "0.5"}
NOUNS = [
    "river",
    "morning",
    "garden",
    "window",
    "letter",
    "candle",
    "mountain",
    "harbour",
    "question",
    "lantern",
    "village",
    "winter",
]


@dataclass(slots=True)
class Served:
    """A request as the provider has it on its bill."""

    read: int  # tokens
    words: list[str] = field(default_factory=list)  # that were sent
    is_whole: bool = False  # its end was sent, with usage

    @property
    def wrote(self) -> int:
        return tokens("".join(self.words))


@dataclass(slots=True)
class Story:
    """A run, and what the provider does with its first request."""

    kind: str  # plain, stop, cut, fallback, kill
    at: int  # words after which that happens
    run: str = ""
    served: list[Served] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    hits: int = 0


def tokens(text: str, messages: Any = None) -> int:
    counted = {"messages": messages} if messages else {"text": text}
    return int(load_litellm().token_counter(model="openai/bench", **counted))


class Provider(OpenAIServer):
    def __init__(self, seed: int) -> None:
        super().__init__(token_delay=WORD_S)
        self.stories: dict[str, Story] = {}
        self._random = random.Random(seed)

    def tell(self, kind: str) -> str:
        """A new story; returns the text by which it is asked for."""
        at = int(WORDS * 0.9) if kind == "fallback" else self._random.randrange(3, WORDS - 10)
        text = f"Tell story {len(self.stories)}: {' '.join(self._random.choices(NOUNS, k=30))}."
        self.stories[text] = Story(kind, at)
        return text

    def _answered(self, text: str) -> str:
        said = random.Random(text)
        return " ".join(said.choices(NOUNS, k=WORDS))

    async def _chunks(self, body: Body, reply: Reply, gone: asyncio.Task[None]) -> AsyncIterator[bytes]:
        text = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
        text = text if isinstance(text, str) else text[0]["text"]
        story, served = self.stories[text], Served(tokens("", body["messages"]))
        story.served.append(served)
        is_first = len(story.served) == 1
        whole = self._answered(text)
        usage = {"prompt_tokens": served.read, "completion_tokens": tokens(whole)}
        cut_after = story.at + 1 if is_first and story.kind in ("cut", "fallback") else None
        reply = Reply(text=whole, usage=usage, cut_after=cut_after)
        async for chunk in super()._chunks(body, reply, gone):
            words = len(served.words)
            if words < WORDS and b'"content": ""' not in chunk:
                served.words.append(whole.split(" ")[words] if words == 0 else " " + whole.split(" ")[words])
            served.is_whole = b"[DONE]" in chunk
            if words >= story.at or served.is_whole:
                story.reached.set()
            yield chunk


@dataclass(frozen=True, slots=True)
class Size:
    requests: int
    stops: int
    cuts: int
    fallbacks: int
    kills: int


def measure(stack: Stack, size: Size, seed: int = 7) -> Iterator[Figure]:
    tokens("warm")
    with Provider(seed) as provider, ExitStack() as opened:
        env = {**LEASE, "BENCH_MODEL_URL": provider.base_url}
        workers = [Worker(stack, opened, number, env) for number in range(WORKERS + (size.kills > 0))]
        kinds = ["stop"] * size.stops + ["cut"] * size.cuts + ["fallback"] * size.fallbacks
        kinds += ["plain"] * (size.requests - len(kinds) - size.kills)
        random.Random(seed).shuffle(kinds)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda kind: live(provider, kind), kinds))
        kill_all(provider, workers, size.kills)
    yield from figures(list(provider.stories.values()))


class Worker:
    """A worker that starts again after it was killed."""

    def __init__(self, stack: Stack, opened: ExitStack, number: int, env: dict[str, str]) -> None:
        self._stack, self._opened, self._number, self._env, self._starts = stack, opened, number, env, 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        name = f"bill{self._number}-{self._starts}"
        self.child: Child = self._opened.enter_context(worker(self._stack, name, **self._env))
        self._is_warm = False

    def wait_warm(self) -> None:
        if not self._is_warm:
            alive = WorkerProcess.objects.filter(name__contains=f":{self.child.pid}:")
            require(alive.exists, self.child, "sign on")
            self._is_warm = True

    def kill(self) -> None:
        assert self.child.pid
        os.kill(self.child.pid, signal.SIGKILL)
        self.start()


def begin(provider: Provider, kind: str) -> Story:
    text = provider.tell(kind)
    story = provider.stories[text]
    agent = "react/bench-bill-fallback" if kind == "fallback" else "react/bench-bill"
    story.run = str(submit(agent, text).id)
    return story


def live(provider: Provider, kind: str) -> None:
    """A run from its start to its end."""
    try:
        story = begin(provider, kind)
        if kind == "stop":
            if not story.reached.wait(TIMEOUT_S):
                raise ProcessError(f"the answer of run {story.run} did not come")
            endings.cancel(story.run, "stopped")
        wait_ended([story])
    finally:
        connections.close_all()


def wait_ended(stories: list[Story]) -> None:
    rows = Run.objects.filter(id__in=[story.run for story in stories], status__in=ENDED)
    if not wait_until(lambda: rows.count() == len(stories), TIMEOUT_S, poll=0.1):
        raise ProcessError(f"only {rows.count()} of {len(stories)} runs ended within {TIMEOUT_S:g} s")


def kill_all(provider: Provider, workers: list[Worker], kills: int) -> None:
    """Kill the worker of each run in the middle of its answer. Other runs that it has are hit too, see MOST_HITS."""
    stories: list[Story] = []
    while len([one for one in stories if one.hits]) < kills:
        for one in workers:
            one.wait_warm()
        story = begin(provider, "kill")
        stories.append(story)
        if not story.reached.wait(TIMEOUT_S):
            raise ProcessError(f"the answer of run {story.run} did not come")
        owner = Run.objects.values_list("lease_owner", flat=True).get(id=story.run)
        doomed = next((one for one in workers if f":{one.child.pid}:" in owner), None)
        held = set(map(str, Run.objects.filter(lease_owner=owner, status=Status.RUNNING).values_list("id", flat=True)))
        hit = [one for one in stories if one.run in held]
        if doomed is None or story not in hit or any(one.hits == MOST_HITS for one in hit):
            continue  # it has ended, or others must not be hit again: the next one
        doomed.kill()
        for one in hit:
            one.hits += 1
    wait_ended(stories)


def figures(stories: list[Story]) -> Iterator[Figure]:
    """Sums by what the provider reported and what was counted here, and the requests that are missing or twice."""
    by_run: dict[str, list[Any]] = defaultdict(list)
    rows = JournalEntry.objects.filter(run__in=[one.run for one in stories], input_tokens__isnull=False)
    for row in rows.filter(kind__in=("llm.call", "llm.paid")).order_by("run_id", "seq"):
        by_run[str(row.run_id)].append(row)
    missing = twice = unseen = 0
    ours, theirs = Counter[bool](), Counter[bool]()
    for story in stories:
        found, served = by_run[story.run], [one for one in story.served if one.words]
        if extra := max(0, len(found) - len(story.served)):
            print(f"more rows than requests: {story}, {[_about(row) for row in found]}", file=sys.stderr)
            silent = [row for row in found if not row.output_tokens][:extra]  # sent over a connection that was closed
            found = [row for row in found if row not in silent]
            twice, unseen = twice + extra - len(silent), unseen + len(silent)
        missing += max(0, len(served) - len(found))
        for row, one in zip(found, served, strict=False):
            is_estimated = bool((row.result or {}).get("estimated"))
            ours[is_estimated] += row.input_tokens + row.output_tokens
            theirs[is_estimated] += one.read + one.wrote
    reasons = Counter((row.result or {}).get("reason", "") for found in by_run.values() for row in found)
    total = sum(len(one.served) for one in stories)
    yield Figure("bill_requests", None, total, "requests")
    yield Figure("bill_missing", None, missing, "requests")
    yield Figure("bill_twice", None, twice, "requests")
    yield Figure("bill_unseen", None, unseen, "requests")
    for reason in ("stopped", "cut", "fallback", "lost"):
        yield Figure(f"bill_{reason}", None, reasons[reason], "requests")
    for is_estimated, name in ((False, "reported"), (True, "estimated")):
        off = 100 * (ours[is_estimated] / theirs[is_estimated] - 1) if theirs[is_estimated] else 0.0
        yield Figure(f"bill_{name}_off", None, off, "%")
    yield Figure("bill_off", None, 100 * (sum(ours.values()) / sum(theirs.values()) - 1), "%")


def _about(row: Any) -> str:
    reason = (row.result or {}).get("reason", row.error)
    return f"{row.path} {row.kind} {reason} {row.input_tokens} + {row.output_tokens}"
