"""Requests to models that were lost with a killed worker: their marks, and their rows on the bill.

A mark is what a request leaves outside of its process without another commit: the reservation of a budgeted tree, and
the frame by which the request begins. The lease that follows a lost one reads the marks of requests without a row, and
writes their rows (reason "lost") in its first commit. A request without a mark is not billed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from ravi_django.agents.memory.compaction.tokens import TokenCounter
from ravi_django.calls.llm import pricing
from ravi_django.calls.llm.loading import aload_litellm
from ravi_django.calls.model.bill import PAID, Request, named, tokens_of
from ravi_django.engine.db.threads import DatabaseThreads
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.journal.lease import Lease
from ravi_django.engine.lease.appender import append_repeatable
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import ChatModel, InvalidInputError, Usage
from ravi_django.live.streams.buffer import get_buffer
from ravi_django.live.streams.frames import ARGUMENTS
from ravi_django.models import JournalEntry, Reservation
from ravi_django.runs.budgets import accounts, ledger
from ravi_django.runs.catalog import specs

log = logging.getLogger("ravi.bill")

MARK_S = 0.05  # the first byte of an answer waits for the mark for at most this time
PAGE, MAX_FRAMES = 500, 50_000  # of the tree's newest frames that are read

REQUEST = "request"  # key of a mark in a frame: the lease's epoch, a dot, and the request's number in its call


# ------------------------------------------------------------------------------------------------------ the marks


def mark(recorder: Recorder, path: str, request: Request | None) -> asyncio.Task[None] | None:
    """Begin to send the mark of a request that begins, unless its model costs nothing or has no price by which a lost
    request could be billed; of a fallback's always, so that its text is not the earlier model's. See `sent`."""
    if request is None or not (request.number or _has_price(request.model)):
        return None
    return asyncio.create_task(_send(recorder, path, request))


async def sent(mark: asyncio.Task[None] | None) -> None:
    """Wait until the buffer has the mark, for at most MARK_S: before a byte of the answer is shown."""
    if mark is not None:
        await asyncio.wait([mark], timeout=MARK_S)


async def _send(recorder: Recorder, path: str, request: Request) -> None:
    tokens = await TokenCounter(request.model).total(request.messages)
    about = {"model": request.model.name, "call": path, "input_tokens": tokens}
    await recorder.stream.mark(about | {REQUEST: f"{recorder.lease.epoch}.{request.number}"}, MARK_S)


def _has_price(model: ChatModel) -> bool:
    prices = pricing.prices_of(model)
    return not getattr(model, "reports_cost", False) if prices is None else any(prices.values())


# ------------------------------------------------------------------------------------------------ lost requests


@dataclass(slots=True)
class Lost:
    """A request that has a mark and no row."""

    path: str  # of its call
    request: str  # as in the mark
    model: str
    input_tokens: int
    begun: str = ""  # ISO 8601, of its frames
    ended: str = ""
    texts: list[str] = field(default_factory=list)  # that were streamed
    is_refused: bool = False  # by its status: it costs nothing

    @property
    def epoch(self) -> int:
        return int(self.request.partition(".")[0])

    @property
    def row(self) -> str:
        return f"@paid.{self.path}#{self.request}"


async def entries(database: DatabaseThreads, lease: Lease, model: ChatModel | None) -> list[Entry]:
    """The rows of the requests that were lost with the lease before this one. `model` is the agent's."""
    return [await _entry(lost, model) for lost in await database.call(find, lease)]


def write(lease: Lease, rows: list[Entry]) -> None:
    """Commit the rows of a run that is not executed now."""
    accounts.learn()
    append_repeatable(lease, rows, [])


def find(lease: Lease) -> list[Lost]:
    """The lost requests of a run, and free the reservations of all others: nobody settles them."""
    rows = JournalEntry.objects.filter(run_id=lease.run_id)
    since = rows.order_by("-seq").values_list("epoch", flat=True).first() or 0  # earlier leases are on the bill
    marks = _streamed(lease, since)
    known = {(one.path, one.epoch) for one in marks}
    reserved = Reservation.objects.filter(run_id=lease.run_id)
    held = {row.path: Lost(row.path, row.request, row.model, row.input_tokens) for row in reserved}
    marks += [one for one in held.values() if one.request and (one.path, one.epoch) not in known]
    paths = [path for one in marks for path in (one.path, one.row)]
    written = set(rows.filter(epoch__gte=since, path__in=paths).values_list("path", "epoch"))
    lost = [one for one in marks if not written & {(one.path, one.epoch), (one.row, one.epoch)}]
    for path in held.keys() - {one.path for one in lost}:
        ledger.free(lease, path)
    return lost


def _streamed(lease: Lease, since: int) -> list[Lost]:
    """The requests by the frames of these leases: the last one of each call, and those before it that have streamed an
    answer; another one was refused."""
    marks: dict[tuple[str, int], list[Lost]] = {}
    try:
        for frame in _frames(lease, since):
            _read(frame, marks, since)
    except Exception as error:  # the run goes on without it
        log.warning("run %s: no frames: %s", lease.run_id, error, extra={"action": "bill.frames"})
    return [
        one
        for ones in marks.values()
        for one in ones
        if not one.is_refused and (one is ones[-1] or one.texts) and since <= one.epoch < lease.epoch
    ]


def _frames(lease: Lease, since: int) -> Iterator[dict[str, Any]]:
    """The run's frames of these leases, oldest first."""
    buffer, tree, run = get_buffer(), str(lease.run.tree_id), str(lease.run_id)
    frames: list[dict[str, Any]] = []
    before, count = None, 0
    while count < MAX_FRAMES and (page := buffer.newest(tree, before, PAGE)):
        before, count = page[-1]["seq"], count + len(page)
        frames += [frame for frame in page if frame["run"] == run]
        if any(_begins(frame, since) for frame in page if frame["run"] == run):
            break
    yield from reversed(frames)


def _begins(frame: dict[str, Any], since: int) -> bool:
    """Whether all earlier frames of its run are of earlier leases."""
    content = frame.get("content")
    is_older = isinstance(content, dict) and REQUEST in content and int(content[REQUEST].partition(".")[0]) < since
    return is_older or (frame["type"] == "progress" and frame["step"] == "started")


def _read(frame: dict[str, Any], marks: dict[tuple[str, int], list[Lost]], since: int) -> None:
    content = frame.get("content")
    if frame["type"] in ("text.delta", "reasoning.delta", ARGUMENTS):
        epoch, _, restarts = frame["attempt"].partition(".")
        if not restarts or restarts.isdigit():  # else it is no model's text
            _add(marks.get((frame["call"], int(epoch)), []), frame["text"], frame["ts"])
    elif frame["type"] == "progress" and frame["step"] == "thinking" and isinstance(content, dict):
        path = content.get("call", "")
        if REQUEST in content:
            one = Lost(path, content[REQUEST], content["model"], content["input_tokens"], frame["ts"], frame["ts"])
            marks.setdefault((path, one.epoch), []).append(one)
            return
        newest = max((epoch for call, epoch in marks if call == path), default=since)
        ones = marks.get((path, newest), [])
        if content.get("refused") and ones:
            ones[-1].is_refused = not ones[-1].texts
        _add(ones, content.get("tool", ""), frame["ts"])


def _add(ones: list[Lost], text: str, at: str) -> None:
    if ones and text:
        ones[-1].texts.append(text)
        ones[-1].ended = at


async def _entry(lost: Lost, root: ChatModel | None) -> Entry:
    model = _model(root, lost.model)
    if (needs := getattr(model, "needs_library", None)) is not None and needs():
        with suppress(Exception):  # then its list has no price
            await aload_litellm()
    wrote = await tokens_of(model, "".join(lost.texts))
    entry = Entry(PAID, lost.row, lost.model)
    entry.usage = Usage(input_tokens=lost.input_tokens, output_tokens=wrote, estimated=True)
    prices = pricing.prices_of(model)
    entry.cost = None if prices is None else pricing.cost_by(prices, entry.usage)
    entry.result = {"estimated": True, "reason": "lost"}
    if lost.begun:
        took = datetime.fromisoformat(lost.ended) - datetime.fromisoformat(lost.begun)
        entry.elapsed_s = max(0.0, took.total_seconds())
    return entry


def _model(root: ChatModel | None, name: str) -> Any:
    """The agent's model of this name, else the client that the name alone makes."""
    if (inner := None if root is None else named(root, name)) is not None:
        return inner
    try:
        return specs.build_model(name)
    except InvalidInputError:  # a model of the site's own: tokens are estimated, and the price is the site's
        return SimpleNamespace(name=name)
