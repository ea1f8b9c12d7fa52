"""`/ws/ravi/runs/{id}/?after=N`: one run tree, by any of its runs.

`/ws/ravi/sessions/{id}/?after=N`: a session's run trees, one after the other.

Which trees: the oldest one that has not ended, or the newest if all have ended; then every later one, in the order of
submission, also those submitted while the socket is open. One tree is streamed to its `stream.done` before the next
begins, so `seq` increases without gaps and restarts with each tree. The server does not close the socket.

`after` applies to the first tree. After a reconnect that tree may have ended: `&run=<id>` (any run of the tree that
`after` was read from) names the tree to continue with.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import UUID

from ravi_django.kernel import ConflictError, InvalidInputError
from ravi_django.models import TERMINAL, Run, Session
from ravi_django.runtime.db.threads import readers
from ravi_django.ws.access import NOT_FOUND, Refused, query, uuid_of
from ravi_django.ws.consumer import StreamConsumer

LOOK_S = 1.0  # how often an idle socket looks for a new tree
WINDOW = 500  # the newest trees of a session, among which it looks for new ones


class RunConsumer(StreamConsumer):
    """Sends every frame above `after` and closes with 1000 after `stream.done`. `cancel` is for the run in the address,
    `message` goes to the agent of the tree's root, in its session."""

    async def find(self) -> None:
        run_id = uuid_of(self.scope["url_route"]["kwargs"]["id"])
        self.run = self.reads = await readers().call(self._lookup, run_id)

    def _lookup(self, run_id: UUID) -> Run:
        run: Run | None = Run.objects.for_user(self.user).select_related("root").filter(id=run_id).first()
        if run is None:
            raise Refused(NOT_FOUND, "there is no such run of yours")
        return run

    async def stream(self) -> None:
        await self.follow(self.run.tree_id, self.after)

    def cancelled(self) -> UUID:
        return self.run.id

    def addressed(self) -> tuple[str, UUID]:
        root = self.run.root or self.run
        return root.agent, root.session_id


class SessionConsumer(StreamConsumer):
    """`message` goes to the session's last agent, `cancel` is for the streamed tree."""

    async def find(self) -> None:
        session_id = uuid_of(self.scope["url_route"]["kwargs"]["id"])
        named = query(self.scope, "run")
        self.session = self.reads = await readers().call(self._lookup, session_id)
        self._submitted = asyncio.Event()
        self._seen: set[UUID] = set()
        self._tree: UUID | None = await readers().call(self._first, uuid_of(named) if named else None)
        if self._tree is None:
            self.after = 0

    def _lookup(self, session_id: UUID) -> Session:
        session: Session | None = Session.objects.for_user(self.user).filter(id=session_id).first()
        if session is None:
            raise Refused(NOT_FOUND, "there is no such session of yours")
        return session

    def _first(self, named: UUID | None) -> UUID | None:
        """The first tree; earlier ones count as seen."""
        roots = self._roots()
        if named is not None:
            run = Run.objects.for_user(self.user).filter(id=named).first()
            first = run.tree_id if run else None
            if first is None or not Run.objects.filter(id=first, session=self.session).exists():
                raise Refused(NOT_FOUND, "there is no such run in this session")
        else:
            active = [root for root, status in roots if status not in TERMINAL]
            first = next(iter(active or [root for root, _ in reversed(roots)]), None)
        ids = [root for root, _ in roots]
        self._seen = set(ids[: ids.index(first)] if first in ids else ())
        return first

    def _roots(self) -> list[tuple[UUID, str]]:
        """The newest runs, the oldest first by the clock of the database: those of web processes may differ."""
        rows = Run.objects.filter(session=self.session, parent=None).order_by("-id")
        found = sorted(rows.values_list("created_at", "id", "status")[:WINDOW])
        return [(root, status) for _, root, status in found]

    async def stream(self) -> None:
        while True:
            if self._tree is None:
                self._tree, self.after = await self._next(), 0
            await self.follow(self._tree, self.after)
            self._seen.add(self._tree)
            self._tree = None

    async def _next(self) -> UUID:
        """Wait for a tree that this socket has not streamed."""
        while True:
            self._submitted.clear()
            roots = [root for root, _ in await readers().call(self._roots)]
            self._seen &= {*roots}
            if new := [root for root in roots if root not in self._seen]:
                return new[0]
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):  # before 3.12 wait_for may swallow a cancellation
                    await self._submitted.wait()

    def cancelled(self) -> UUID:
        if self._tree is None:
            raise ConflictError("no run of this session is active; there is nothing to cancel")
        return self._tree

    def addressed(self) -> tuple[str, UUID]:
        self.session.refresh_from_db(fields=["agent"])
        if not self.session.agent:
            raise InvalidInputError("this session has no agent yet; send its first message over REST", field="agent")
        return self.session.agent, self.session.id

    def submitted(self) -> None:
        self._submitted.set()
