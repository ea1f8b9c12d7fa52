"""The life of a socket: accept, authenticate, stream until the end, and execute the client's frames."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from typing import Any
from uuid import UUID, uuid4

from channels.generic.websocket import AsyncWebsocketConsumer
from pydantic_core import to_json

from ravi_django import limits
from ravi_django.engine.db.threads import readers
from ravi_django.kernel import AgentId, ConflictError, InvalidInputError, KernelError, RateLimitedError, TopicId
from ravi_django.live.streams import hidden, live, reading
from ravi_django.models import TERMINAL, Run, Session
from ravi_django.models.base import Owned
from ravi_django.runs.lifecycle.endings import cancel_for
from ravi_django.services import exchanges, open_streams
from ravi_django.services.open_streams import Credential, OpenStream, watched
from ravi_django.ws import auth, commands
from ravi_django.ws.auth import BAD_REQUEST, NOT_FOUND, TOO_MANY, UNSUPPORTED, Refused, query, uuid_of

log = logging.getLogger("ravi.ws")

DONE, AWAY = 1000, 1013


class ClientGone(Exception):
    """The connection is closed: nothing can be sent."""


class SlowClient(ClientGone):
    """The client has not taken a frame for SLOW_S."""


class StreamConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Subclasses find the row (`find`), stream its frames (`stream`) and name the targets of commands (`cancelled`,
    `addressed`).

    A frame is read from the event buffer after the previous one was sent: for a slow client at most a page of frames
    waits here (`reading.PAGE`), for SLOW_S. Then only the close waits. The socket keeps its place until the client has
    taken the close or is gone.
    """

    channel_layer_alias = None  # frames come from the event buffer, so that the channel layer may fail

    again = "the stream failed; open it again with after= the last seq that you have"

    user: Any
    credential: Credential
    after: int
    whole: bool  # with values that are hidden from owners
    reads: Owned | None = None  # the row that the socket shows; `find` sets it
    _streaming: asyncio.Task[None] | None = None
    _ending: asyncio.Task[None] | None = None
    _closed = False

    async def find(self) -> None:
        """Look up the row in the address. Raises Refused."""
        raise NotImplementedError

    async def stream(self) -> None:
        """Send every frame; returning closes the socket with 1000."""
        raise NotImplementedError

    def cancelled(self) -> UUID:
        """The run that `cancel` is for. Raises KernelError, by default for a socket that accepts only answers."""
        raise InvalidInputError("this socket accepts only frames of the type answer", field="type")

    def addressed(self) -> tuple[str, UUID]:
        """The agent and the session that `message` is for; on a database thread. Raises KernelError."""
        raise InvalidInputError("this socket accepts only frames of the type answer", field="type")

    def submitted(self) -> None:
        """A message of this client became a run."""

    async def connect(self) -> None:
        await self.accept()  # refusals too: a browser shows the code only of an accepted socket
        try:
            self.user, self.credential = await auth.user_of(self.scope)
            self.after = auth.after_of(self.scope)
            await self.find()
            slot = await readers().call(limits.open_one, self.user, "sockets")
        except Refused as refusal:
            await self._refuse(refusal)
        except RateLimitedError as error:
            await self._try_send(commands.error_frame(error))
            await self._close(TOO_MANY, "too many open sockets")
        except Exception as error:
            await self._give_up(error)
        else:
            self.whole = hidden.sees(self.user)
            open_stream = OpenStream(
                self.user.pk, self.credential, slot, self.reads, whole=self.whole, on_revoked=self._revoked
            )
            self._streaming = asyncio.create_task(self._serve(open_stream))

    async def disconnect(self, code: int) -> None:
        self._closed = True
        if self._streaming is not None:
            self._streaming.cancel()
            with suppress(asyncio.CancelledError):
                await self._streaming

    async def _serve(self, open_stream: OpenStream) -> None:
        try:
            async with watched(open_stream):
                try:
                    await self.stream()
                except SlowClient:
                    log.info("socket %s: a slow client is cut", self.scope["path"], extra={"action": "ws.slow"})
                    await self._close(AWAY, "too slow: open it again with after= the last seq that you have")
            await self._close(DONE)
        except ClientGone:
            pass
        except Refused as refusal:
            await self._refuse(refusal)
        except Exception as error:
            await self._give_up(error)

    def _revoked(self, code: int, reason: str) -> None:
        self._ending = asyncio.create_task(self._refuse(Refused(code, reason)))

    async def follow(self, tree: UUID, after: int) -> None:
        """Send the frames of one run tree above `after`, to its end."""
        async with aclosing(reading.follow(tree, after, whole=self.whole)) as frames:
            async for frame in frames:
                await self._send(frame)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._streaming is None or self._closed:
            return
        command = None
        try:
            command = commands.read(text_data, bytes_data)
            await self._send({"type": "accepted", **await self._obey(command)})
        except Refused as refusal:
            await self._refuse(refusal)
        except ClientGone:
            pass
        except Exception as error:
            if not isinstance(error, KernelError):
                log.exception("a client's frame failed", extra={"action": "ws.command_failed"})
            await self._try_send({**commands.error_frame(error), **_about(command)})

    async def _obey(self, command: commands.Command) -> dict[str, str]:
        """Returns the ids of the run and the request for the client."""
        user = await readers().call(auth.sender, self.user.pk, self.credential)
        if isinstance(command, commands.Answer):
            run_id = await readers().call(commands.Answering(command, user))
            return {"request": str(UUID(command.request)), "run": str(run_id)}
        if isinstance(command, commands.Cancel):
            run_id = self.cancelled()
            await readers().call(cancel_for, user, run_id)
            return {"run": str(run_id)}
        agent, session = await readers().call(self.addressed)
        # `readers` repeats a call after a lost connection: the key makes it one run.
        run = await readers().call(_submit, agent, command, session, user, f"ws:{uuid4()}")
        self.submitted()
        return {"run": str(run.id)}

    async def _send(self, frame: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(open_streams.SLOW_S):
                await self.send(text_data=to_json(frame).decode())
        except TimeoutError as error:
            raise SlowClient from error
        except Exception as error:  # each server raises its own exception
            raise ClientGone from error

    async def _try_send(self, frame: dict[str, Any]) -> None:
        with suppress(ClientGone):
            await self._send(frame)

    async def _refuse(self, refusal: Refused) -> None:
        if refusal.code == BAD_REQUEST:
            await self._try_send({"type": "error", "code": "invalid_input", "message": refusal.reason})
        await self._close(refusal.code, refusal.reason)

    async def _give_up(self, error: Exception) -> None:
        log.warning("socket %s: %s: %s", self.scope["path"], type(error).__name__, error, extra={"action": "ws.failed"})
        await self._try_send({"type": "error", "code": "unavailable", "message": self.again})
        await self._close(AWAY, "try again")

    async def _close(self, code: int, reason: str | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(Exception):
            await self.close(code, reason)


class UnknownPath(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Any other address below ours."""

    channel_layer_alias = None

    async def connect(self) -> None:
        await self.accept()
        with suppress(Exception):
            await auth.user_of(self.scope)  # use the ticket: this address is in the site's log
        await self.close(NOT_FOUND, "there is no such socket")


def _submit(agent: str, command: commands.Say, session: UUID, user: Any, key: str) -> Run:
    limits.count(user, "submit")
    message = command.input or command.text or ""
    options: Any = {"session": session, "idempotency_key": key, "on_busy": command.on_busy}
    return exchanges.submit(user, AgentId.parse(agent), message, **options)[0]


def _about(command: commands.Command | None) -> dict[str, str]:
    """The request that an error is about."""
    return {"request": command.request[:100]} if isinstance(command, commands.Answer) else {}


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


class TopicConsumer(StreamConsumer):
    """The text of all runs of an agent that the user may see, from now on, without numbers. Accepts only `answer`."""

    again = "the stream failed; open it again"

    async def find(self) -> None:
        try:
            self._topic = TopicId(**self.scope["url_route"]["kwargs"])
            live.check(self._topic)
        except KernelError as error:
            code = BAD_REQUEST if isinstance(error, InvalidInputError) else UNSUPPORTED
            raise Refused(code, f"{error}"[:120]) from None

    async def stream(self) -> None:
        async with aclosing(live.live(self._topic, self.user)) as frames:
            async for frame in frames:
                await self._send(frame)


class SessionConsumer(StreamConsumer):
    """A session's run trees, one after the other: the oldest one that has not ended, or the newest if all have ended;
    then every later one, in the order of submission. `seq` restarts with each tree. The server does not close the
    socket. `message` goes to the session's last agent, `cancel` is for the streamed tree.

    `after` applies to the first tree. After a reconnect that tree may have ended: `&run=<id>` (any run of the tree that
    `after` was read from) names the tree to continue with.
    """

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
        ordered = sorted(rows.values_list("created_at", "id", "status")[:WINDOW])
        return [(root, status) for _, root, status in ordered]

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
