"""Read a run tree's events: one page, or follow them. WebSocket, SSE and polling use this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, islice
from typing import Any, TypeVar
from uuid import UUID

from pydantic_core import to_json

from ravi_django.engine.db.threads import readers
from ravi_django.engine.journal.entries import internalize
from ravi_django.kernel import AgentId, InvalidInputError, TopicId, stream_topic
from ravi_django.live.streams import frames as framing, hidden
from ravi_django.live.streams.buffer import POLL_S, get_buffer
from ravi_django.live.streams.frames import STREAM, TEXTS, Frame, Source, named, rest, unpacked
from ravi_django.models import JournalEntry, Run, StreamArchive

T = TypeVar("T")

PAGE = 500  # frames, or journal rows converted to frames
SNAPSHOT_BYTES = 1_000_000

_asked: dict[tuple[Any, ...], asyncio.Task[tuple[list[dict[str, Any]], bool]]] = {}  # reads that have not begun


def page(
    tree: UUID | str, after: int = 0, limit: int = PAGE, *, whole: bool = False, room: int | None = None
) -> tuple[list[dict[str, Any]], bool]:
    """Frames above `after`, in order, and whether they end the stream. Reads the buffer, then the archive. `whole`:
    with values that are hidden from owners, see `hidden.sees`. At most `room` bytes, but always one frame."""
    frames, done = _page(tree, after, limit, room)
    if done and not frames:
        frames = _again(tree, after)
    visible = _visible(frames, whole=whole)
    if room is None:
        return visible, done
    totals = accumulate(len(to_json(frame)) for frame in visible)
    fitting = visible[: max(1, sum(total <= room for total in totals))]
    return fitting, done and len(fitting) == len(visible)


def _visible(frames: list[dict[str, Any]], *, whole: bool) -> list[dict[str, Any]]:
    visible = named(frames) if whole else [hidden.frame(frame) for frame in named(frames)]
    return [_gap(frame, whole=whole) if frame["type"] == "stream.gap" else frame for frame in visible]


def _gap(frame: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """A gap's snapshot has frames too."""
    snapshot = frame["snapshot"]
    return {**frame, "snapshot": {**snapshot, "frames": _visible(snapshot["frames"], whole=whole)}}


def _page(tree: UUID | str, after: int, limit: int, room: int | None = None) -> tuple[list[dict[str, Any]], bool]:
    frames = _read(tree, after, limit, room)
    done = _is_end(tree, frames, limit)
    if done and not frames:  # the last frames may have come between the two reads
        frames = _read(tree, after, limit, room)
        done = not frames or _is_end(tree, frames, limit)
    return frames, done


def _read(tree: UUID | str, after: int, limit: int, room: int | None = None) -> list[dict[str, Any]]:
    frames = get_buffer().read(str(tree), after, limit, room)
    if frames is None:
        frames = archived(tree, after, limit)
    elif frames and _first(frames[0]) > after + 1:  # frames from before a retry may be in the archive alone
        frames = [*(frame for frame in archived(tree, after, limit) if frame["seq"] < frames[0]["seq"]), *frames]
    return _announced(tree, frames, after)[:limit]


def _announced(tree: UUID | str, frames: list[dict[str, Any]], after: int) -> list[dict[str, Any]]:
    """The frames, with a gap where numbers are missing. The gap has the last missing number."""
    announced = []
    for frame in frames:
        missing = _first(frame) - 1
        root = Run.objects.get(id=tree) if missing > after else None
        if root is not None and (root.published_at is None or stored(tree)):  # else its archive was pruned
            announced.append(_lost(root, min(after + 1, missing - 1), missing - 1))
        announced.append(frame)
        after = frame["seq"]
    return announced


def _lost(root: Run, start: int, to: int) -> dict[str, Any]:
    data = {"from": start, "to": to, "snapshot": snapshot(str(root.id))}
    return {"seq": to + 1, **Frame(Source.of(root), "stream.gap", data).body()}


def has_ended(tree: UUID | str, after: int) -> bool:
    """Whether the stream has ended with the number `after`."""
    return page(tree, after, 1) == ([], True)


def _again(tree: UUID | str, after: int) -> list[dict[str, Any]]:
    """A gap and the end again, for a client with a number above the end: the buffer had lost what the client has. An
    EventSource continues with the true number of the `end`, and so stops."""
    end = stored(tree)[-1:]
    if not end or after <= (number := end[0]["seq"]):
        return []
    return [_lost(Run.objects.get(id=tree), number + 1, after), {**end[0], "seq": after + 2, "end": number}]


def _first(frame: dict[str, Any]) -> int:
    """The first number that a frame stands for."""
    return int(frame["from"] if frame["type"] == "stream.gap" else frame.get("from_seq", frame["seq"]))


def _is_end(tree: UUID | str, frames: list[dict[str, Any]], limit: int) -> bool:
    """The last frame is `stream.done` (or was read before), and the root is terminal: a retry continues the stream."""
    if len(frames) >= limit:
        return False
    if frames and frames[-1]["type"] != "stream.done":
        return False
    root = Run.objects.only("status", "published_at", "lease_epoch").get(id=tree)
    if not root.is_terminal:
        return False
    if frames:  # a retry followed an earlier end
        newest = str(root.lease_epoch)
        return bool(frames[-1].get("attempt", newest) == newest)
    return root.published_at is not None


def archived(tree: UUID | str, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
    """The frames above `after` that were archived when the stream last ended."""
    return [rest(frame, after) for frame in stored(tree) if frame["seq"] > after][:limit]


def stored(tree: UUID | str) -> list[dict[str, Any]]:
    """The archive as it is."""
    body = StreamArchive.objects.filter(tree_id=UUID(str(tree))).values_list("body", flat=True).first()
    return [] if body is None else unpacked(bytes(body))


def snapshot(tree: str) -> dict[str, Any]:
    """The tree's status and newest durable frames, at most SNAPSHOT_BYTES, for a client that cannot get the frames of a
    gap."""
    root, newest_first = _newest_first(tree)
    bodies: list[dict[str, Any]] = []
    size = 0
    for frame in newest_first:
        size += len(frame.encoded())
        if size > SNAPSHOT_BYTES:
            break
        bodies.append(frame.body())
    return {"status": root.status, "output": root.output, "frames": bodies[::-1]}


def durable_frames(tree: str, since: datetime | None = None) -> tuple[Run, list[Frame]]:
    """The root, and the durable frames of the tree's rows since the root's previous generation."""
    root, newest_first = _newest_first(tree, since)
    return root, [*newest_first][::-1]


def _newest_first(tree: str, since: datetime | None = None) -> tuple[Run, Iterator[Frame]]:
    root = Run.objects.get(id=tree)
    below = Run.objects.filter(root_id=UUID(tree)).select_related("parent")
    sources = {run.id: Source.of(run) for run in (root, *below)}
    rows = JournalEntry.objects.filter(run_id__in=sources)
    if root.generation > 1:
        recent = JournalEntry.objects.filter(run_id=root.id, generation__gte=root.generation - 1)
        begun = recent.order_by("generation", "seq").values_list("finished_at", flat=True).first()
        since = max(filter(None, (begun, since)), default=None)
    if since is not None:
        rows = rows.filter(finished_at__gte=since)
    latest = rows.order_by("-finished_at", "-seq").iterator(PAGE)

    def frames() -> Iterator[Frame]:
        while entries := list(islice(latest, PAGE))[::-1]:  # frames are small, bodies of rows may be big
            internalize(entries)
            yield from reversed(frames_of(entries, sources))

    return root, frames()


def frames_of(rows: Sequence[JournalEntry], sources: dict[UUID, Source]) -> list[Frame]:
    """The durable frames of these rows, oldest first; `sources` as in `framing.authors`."""
    authors = zip(framing.authors(rows, sources), rows, strict=True)
    return [frame for source, row in authors for frame in framing.durable(source, row, row.seq)]


PROGRESS = "agent.progress"  # TopicId(PROGRESS, run id): the steps of the run's whole tree

_TYPES = {STREAM: TEXTS, PROGRESS: ("progress",)}


@dataclass(frozen=True, slots=True)
class Only:
    """The frames of a tree that a client asks for. The end of the stream and its gaps are always included."""

    agent: str = ""  # an address
    topic: TopicId | None = None

    def __call__(self, frame: dict[str, Any]) -> bool:
        if frame["type"] in ("stream.done", "stream.gap"):
            return True
        if self.topic is not None and not self._is_of(self.topic, frame):
            return False
        return not self.agent or bool(frame["agent"] == self.agent)

    def _is_of(self, topic: TopicId, frame: dict[str, Any]) -> bool:
        if frame["type"] not in _TYPES[topic.type]:
            return False
        return topic.type == PROGRESS or stream_topic(AgentId.parse(frame["agent"])) == topic


EVERY = Only()


def run_of_topic(topic: TopicId, run: str | None) -> UUID:
    """The run whose tree has the topic's frames: `run`, or for a progress topic the run that it names. Raises
    InvalidInputError."""
    if topic.type not in _TYPES:
        message = f"the topic must be {STREAM}/<agent key> or {PROGRESS}/<run id>, not {topic}"
        raise InvalidInputError(message, field="topic")
    field, wanted = ("topic", topic.source) if topic.type == PROGRESS else ("run", run)
    try:
        return UUID(wanted)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{field} must have the id of a run, not {wanted!r:.100}", field=field) from None


def newest(tree: UUID | str, wanted: Callable[[dict[str, Any]], bool] = bool) -> int:
    """The number of the newest frame that is `wanted`; 0 if there is none."""
    after = last = 0
    while frames := _read(tree, after, PAGE):
        after = int(frames[-1]["seq"])
        last = max((int(frame["seq"]) for frame in frames if wanted(frame)), default=last)
    return last


async def follow(
    tree: UUID | str, after: int = 0, *, whole: bool = False, only: Only = EVERY, every_s: float = POLL_S
) -> AsyncGenerator[dict[str, Any]]:
    """The frames above `after`, as they come; ends after `stream.done`. `whole`: see `page`. Looks every `every_s`
    seconds also without a hint."""
    async with get_buffer().watch(str(tree), every_s) as hints:
        while True:
            frames, done = await _read_together(str(tree), after, whole)
            for frame in frames:
                if only(frame):
                    yield frame
                after = frame["seq"]
            if done:
                return
            if len(frames) < PAGE:
                await anext(hints)  # at once, if there was one since the last


async def _read_together(tree: str, after: int, whole: bool) -> tuple[list[dict[str, Any]], bool]:
    """`page`, read once for all who ask for the same before the read begins: a hint wakes a run's followers at once."""
    key = (asyncio.get_running_loop(), tree, after, whole)

    async def read() -> tuple[list[dict[str, Any]], bool]:
        try:
            await asyncio.sleep(0)
        finally:
            del _asked[key]
        return await readers().call(page, tree, after, whole=whole)

    if key not in _asked:
        _asked[key] = asyncio.create_task(read(), context=Context())  # not part of a run's code
    return await asyncio.shield(_asked[key])


def on_this_thread(items: AsyncGenerator[T]) -> Iterator[T]:
    """The items, on an event loop of their own: for a thread that has none."""

    async def following() -> T:
        return await anext(items)

    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    yield runner.run(following())
                except StopAsyncIteration:
                    return
        finally:
            runner.run(items.aclose())


async def with_pauses(items: AsyncIterator[T], every_s: float) -> AsyncGenerator[T | None]:
    """The items, and None after each `every_s` seconds without one."""
    coming: asyncio.Future[T] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(anext(items))
            await asyncio.wait({coming}, timeout=every_s)
            if not coming.done():
                yield None
                continue
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield item
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await coming
