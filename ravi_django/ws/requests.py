"""`/ws/ravi/requests/`: requests to people, as they open and close.

First the newest pending requests that the user may see, oldest first; then every change. A hint starts a comparison
with the rows; without hints the socket compares about every ten seconds.

`seq` counts this connection's frames. A `request` frame replaces an earlier one with the same id.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ravi_django.conf import conf
from ravi_django.engine.db.threads import readers
from ravi_django.live.streams.buffer import REQUESTS, get_buffer
from ravi_django.live.streams.frames import name_of
from ravi_django.models import HumanRequest, Run
from ravi_django.people import rights as people_rights
from ravi_django.services.request_shapes import NOT_SHOWN, RequestSerializer, mark, marked
from ravi_django.ws.auth import UNKNOWN_USER, Refused, active
from ravi_django.ws.consumer import StreamConsumer

PENDING = HumanRequest.Status.PENDING
KNOWN = 1000  # the newest pending requests, whose changes a socket finds without a hint


@dataclass(slots=True)
class Look:
    """The present state of some requests."""

    open: list[tuple[UUID, int, dict[str, Any]]] = field(default_factory=list)  # pending: id, version, frame
    closed: dict[UUID, dict[str, Any]] = field(default_factory=dict)  # closed, or no longer visible to this user
    pending: int | None = None  # how many requests the user may answer; None: not counted


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a user, kept for a short time: reading them takes a dozen queries."""

    user: Any
    visible: QuerySet[HumanRequest]
    answerable: QuerySet[HumanRequest]


def rights_of(user_id: Any) -> Rights | None:
    """None for an inactive user."""
    user = active(user_id)
    if user is None:
        return None
    return Rights(
        user,
        people_rights.visible(user),
        people_rights.answerable(user).filter(people_rights.in_time(), status=PENDING),
    )


def states_of(rights: Rights) -> dict[UUID, tuple[int, bool]]:
    """The newest pending requests that the user may see, newest first: version, and whether the user may answer."""
    rows = rights.visible.filter(status=PENDING).order_by("-id").values_list("id", "version")[:KNOWN]
    theirs = set(rights.answerable.order_by("-id").values_list("id", flat=True)[:KNOWN])
    return {id: (version, id in theirs) for id, version in rows}


def look_at(rights: Rights, ids: Collection[UUID], sent: Collection[UUID], pending: int | None = None) -> Look:
    """The present state of these requests, oldest first. Requests that the user may not see are left out, or withdrawn
    if they are in `sent`. `pending` is the count of a recent look: counting thousands takes longer than all else."""
    look = Look(pending=pending)
    rows = rights.visible.filter(id__in=ids).select_related("run", "answered_by").order_by("id")
    seen = list(rows.defer(*(f"run__{name}" for name in NOT_SHOWN)))
    for row in _marked(rights, seen):
        if row.status == PENDING:
            fields = {**_of_run(row.run), **RequestSerializer(row).data}
            look.open.append((row.id, row.version, {"type": "request", **fields}))
        else:
            look.closed[row.id] = _closed(row, row.status, name_of(row))
    lost = set(ids).intersection(sent).difference(row.id for row in seen)
    if lost:
        known = {row.id: row for row in HumanRequest.objects.filter(id__in=lost).select_related("run")}
        look.closed.update({id: _closed(known.get(id), "withdrawn", None, id) for id in sorted(lost)})
    if look.open or look.closed:
        if look.pending is None:
            look.pending = rights.answerable.count()
        for frame in (*(frame for _, _, frame in look.open), *look.closed.values()):
            frame["pending"] = look.pending
    return look


def _marked(rights: Rights, rows: list[Any]) -> list[Any]:
    """As REST marks them. Without RAVI["MAY_ANSWER"] the known rights are enough."""
    if conf.MAY_ANSWER is not None:
        marked(rows, rights.user)
        return rows
    pending = [row.id for row in rows if row.status == PENDING]
    theirs = set(rights.answerable.filter(id__in=pending).values_list("id", flat=True)) if pending else set()
    for row in rows:
        mark(row, rights.user, row.id in theirs)
    return rows


def _of_run(run: Run | None) -> dict[str, Any]:
    """The run's fields in a frame, as in the streams of runs."""
    return {
        "run": run and str(run.id),
        "agent": run and run.agent,
        "parent": str(run.parent_id) if run and run.parent_id else None,
        "depth": run and run.depth,
    }


def _closed(row: HumanRequest | None, status: str, by: str | None, id: UUID | None = None) -> dict[str, Any]:
    of = _of_run(row.run if row else None)
    return {"type": "request.closed", **of, "id": str(row.id if row else id), "status": status, "answered_by": by}


FIRST = 200  # sent on connecting
PAGE = 20  # rows of one query: each may have large arguments
COMPARE_S = 10.0
RIGHTS_S = 2.0  # how long the user's rights are kept
GATHER_S = 0.05  # hints within this time start one comparison
SHARE = 4  # the pause after a comparison, as a multiple of its duration: limits the load of many sockets
REST_MAX_S = 2.0


class RequestsConsumer(StreamConsumer):
    """Accepts only `answer`; the sockets of runs accept the other commands."""

    again = "the requests cannot be read now; open the socket again"

    async def find(self) -> None:
        self._seq = 0
        self._rights: Rights | None = None
        self._asked_at = 0.0
        self._known: dict[UUID, tuple[int, bool]] = {}  # version, and whether the user may answer
        self._sent: set[UUID] = set()  # the known requests that the client has

    async def stream(self) -> None:
        every_s = COMPARE_S * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, no secret
        async with get_buffer().watch(REQUESTS, every_s) as hints:
            await self._begin()
            async for _ in hints:
                await asyncio.sleep(GATHER_S)
                begun = time.monotonic()
                await self._compare()
                await asyncio.sleep(min(SHARE * (time.monotonic() - begun), REST_MAX_S))

    async def _begin(self) -> None:
        states = await readers().call(states_of, await self._may())
        newest = list(states)[:FIRST]
        self._known = {id: states[id] for id in list(states)[FIRST:]}
        await self._show(newest)

    async def _compare(self) -> None:
        """Show the changes among the newest requests."""
        states = await readers().call(states_of, await self._may())
        changed = {id for id, state in states.items() if self._known.get(id) != state}
        gone = self._sent - states.keys()
        for id in changed | (self._known.keys() - states.keys() - gone):
            self._known.pop(id, None)
        await self._show(changed | gone)
        for id in changed & self._known.keys():  # so that a refusal of RAVI["MAY_ANSWER"] is shown only once
            self._known[id] = (self._known[id][0], states[id][1])
        for id in gone & self._sent:  # still pending, but no longer among the newest
            self._sent.discard(id)
            self._known.pop(id, None)

    async def _may(self) -> Rights:
        """The user's rights, at most RIGHTS_S old. Raises Refused."""
        if self._rights is None or time.monotonic() - self._asked_at >= RIGHTS_S:
            self._asked_at = time.monotonic()
            self._rights = await readers().call(rights_of, self.user.pk)
        if self._rights is None:
            raise Refused(UNKNOWN_USER, "your account is no longer active")
        return self._rights

    async def _show(self, ids: Iterable[UUID]) -> None:
        """Send the changes of these requests that the client does not have."""
        ordered, rights, pending = sorted(ids), None, None
        for start in range(0, len(ordered), PAGE):
            page = ordered[start : start + PAGE]
            before, rights = rights, await self._may()
            counted = pending if rights is before else None
            look = await readers().call(look_at, rights, page, self._sent.intersection(page), counted)
            pending = look.pending
            for id, version, frame in look.open:
                known = self._known.get(id)
                if id not in self._sent or known is None or known[0] != version:
                    self._known[id] = (version, frame["may_answer"])
                    self._sent.add(id)
                    await self._number(frame)
            for id, frame in look.closed.items():
                self._known.pop(id, None)
                if id in self._sent:
                    self._sent.discard(id)
                    await self._number(frame)

    async def _number(self, frame: dict[str, Any]) -> None:
        self._seq += 1
        present = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        await self._send({"seq": self._seq, "ts": present, **frame})
