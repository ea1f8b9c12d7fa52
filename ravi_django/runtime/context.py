"""What an agent's run is given: every effect asks the journal first, and is recorded before its result is used."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ravi_django.agents.hooks import Hooks, frozen
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.agents.summary import keeps_of
from ravi_django.agents.toolbox import Toolbox
from ravi_django.kernel import (
    Agent,
    AgentId,
    ApprovalDecision,
    AskOutcome,
    ChatMessage,
    ChatModel,
    ControlPayload,
    GenerationOptions,
    HookCall,
    HookEvent,
    InvalidInputError,
    Message,
    ModelResponse,
    Priority,
    Risk,
    RunHandle,
    RunMeta,
    SpawnBudget,
    ToolExecutionResult,
    TopicId,
)
from ravi_django.kernel.checks import check_text
from ravi_django.runtime import (
    approvals,
    asked_calls,
    asks,
    cancel,
    decisions,
    follow_metadata,
    graph,
    handoff,
    hidden,
    history,
    llm_calls,
    paths,
    pins,
    questions,
    receiving,
    site_middleware,
    tool_calls,
    tool_uncertain,
    waits,
)
from ravi_django.runtime.effects import Effects
from ravi_django.runtime.entries import Entry, NewTurn
from ravi_django.runtime.gate import Stop
from ravi_django.runtime.hops import hops_of, trail_of
from ravi_django.runtime.outputs import Outputs

log = logging.getLogger("ravi.context")

_current: ContextVar[DurableContext | None] = ContextVar("ravi_context", default=None)


def current_context() -> DurableContext | None:
    """The context of the run that this code belongs to; None outside of runs."""
    return _current.get()


# Fired by the agent's own code, which a replay runs again; the others only where something is really done.
_OF_THE_CODE = (HookEvent.STEP_START, HookEvent.STEP_END, HookEvent.FLOW_START, HookEvent.FLOW_END)
MAX_NAME = 200  # characters, as the journal's columns
MAX_PATH = 450
_BEHIND_PAUSE = re.compile(r"^~\d+\.")  # see `tool_running.place_after`


class DurableContext:
    """The RunContext of one lease. See `kernel/contracts.py` for what the methods promise."""

    def __init__(self, agent: Agent, effects: Effects, meta: RunMeta) -> None:
        run = effects.lease.run
        self.effects = effects
        self.agent_id: AgentId = agent.id
        self.run_id = str(run.id)
        self.session_id = str(run.session_id)
        self.user_id = None if run.owner_id is None else str(run.owner_id)
        self.tenant_id: str = run.tenant
        self.meta = meta
        self.toolbox = Toolbox.of(getattr(agent, "tools", None))
        self.model: ChatModel | None = getattr(agent, "model", None)
        self.spawn_budget: SpawnBudget | None = getattr(agent, "spawn_budget", None)
        self.middleware = site_middleware.around(MiddlewarePipeline.of(getattr(agent, "middleware", None)))
        self.hooks = Hooks.of(getattr(agent, "hooks", None))
        self.output: Any = None  # what was replied last
        self.replied = False
        self.given: list[Message] = []  # to this generation's code, so far
        self.hops = 0  # publications behind what the code was given last
        self.answered: set[str] = set()  # of those: the ids of the messages that were replied to
        self.message_ids: dict[str, str] = {}  # of messages that a replay makes anew: the id that was sent
        self.booted: dict[str, str] = {}  # child run: the message that it was started with
        self.deciding = asyncio.Lock()  # calls that people have decided on go on in the order of their rows
        self._patches: dict[str, bool] = {}
        self.pinned: dict[str, Any] = {}  # see `pins`
        self.pinning: dict[str, Any] = {}  # values that a task computes now
        self.turns_given = run.turn_from  # how many this lease's code has handed over
        self.turns_known = run.next_turn  # history turns of this run that are stored or waiting to be
        self._unnumbered = 0  # of those given: without a number of their own
        self._outputs = Outputs(self)
        self._given_in: dict[str, int] = {}  # how many a tool's call has handed over, by its path

    # ------------------------------------------------------------------------------------------- effects

    async def llm(
        self,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
        model: ChatModel | None = None,
    ) -> ModelResponse:
        chosen = model or self.model
        if chosen is None:
            raise InvalidInputError(
                f"agent {self.agent_id} has no model; give it one, or ctx.llm(model=…)", field="model"
            )
        return await llm_calls.call(self, chosen, messages, options or GenerationOptions())

    async def tool(self, name: str, /, **arguments: Any) -> ToolExecutionResult:
        return await tool_calls.call(self, name, arguments)

    async def reply(self, message: Message, result: Any) -> None:
        """Answer a message. The last reply is the run's output; it is stored when the run ends."""
        self.output, self.replied = result, True
        self.answered.add(message.id)
        if message.reply_to and message.reply_to != self.run_id:
            await asks.reply(self, message, result)

    async def spawn(
        self, target: AgentId, boot: Message | str | None = None, *, priority: Priority | None = None
    ) -> RunHandle:
        return await asks.spawn(self, target, boot, priority)

    async def ask(
        self, target: RunHandle | AgentId, message: Message | str, *, timeout: float | timedelta | None = None
    ) -> AskOutcome:
        return await asks.ask(self, target, message, timeout)

    async def join(self, handle: RunHandle, *, timeout: float | timedelta | None = None) -> AskOutcome:
        return await asks.ask(self, handle, None, timeout)

    async def send(self, target: AgentId | RunHandle, message: Message | str) -> None:
        if isinstance(message, Message) and isinstance(message.payload, ControlPayload):
            await cancel.control(self, target, message, message.payload)
        else:
            await asks.send(self, target, message)

    async def sleep_until(self, when: datetime | timedelta) -> None:
        await waits.sleep_until(self, when)

    async def sleep_until_signal(
        self, name: str, *, until: datetime | timedelta | None = None, or_message: bool = False
    ) -> Any:
        return await waits.sleep_until_signal(self, name, until, or_message=or_message)

    async def receive(self) -> list[Message]:
        """The messages that have come since those that the code was given; does not wait for any."""
        return await receiving.receive(self)

    def caused_by(self, message: Message) -> None:
        self.hops = hops_of([message])

    async def ask_human(
        self,
        question: str,
        choices: Sequence[str] | None = None,
        context: str = "",
        free_text: bool = True,
        timeout: float | timedelta | None = None,
        to: Any = None,
        signal: str = "",
    ) -> dict[str, Any]:
        asked = {"choices": choices, "context": context, "free_text": free_text, "timeout": timeout, "to": to}
        return await questions.ask(self, question, **asked, signal=signal)

    async def approve(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        risk: Risk | str = Risk.HIGH,
        to: Any = None,
        call_id: str = "",
        schema: dict[str, Any] | None = None,
        description: str = "",
        timeout: float | timedelta | None = None,
    ) -> ApprovalDecision:
        more: dict[str, Any] = {"call_id": call_id, "schema": schema, "description": description}
        more["hidden"] = bool(hidden.of_tool(self.toolbox.get(tool)))
        until = questions.expiry(self, timeout)
        asked = asked_calls.checked(tool, arguments, risk=risk, to=to, expires_at=until, **more)
        return await approvals.ask(self, asked)

    async def continue_as_new(self, *args: Any, unread: Message | None = None, carry: Any = None) -> None:
        messages = tuple(asks.body_of(self, self.agent_id, arg) for arg in args)
        carries = None if carry is None else asks.body_of(self, self.agent_id, carry)
        given = len(messages) + (0 if unread is None else receiving.give_back(self, unread))
        if self.effects.left_open():  # what may have happened is decided before it is forgotten
            await tool_uncertain.decide_left(self)
        trail = trail_of(self.hops, given)
        await self.effects.end(Stop(Stop.Kind.CONTINUE, messages=messages, carries=carries, trail=trail))

    def say(self, text: str) -> None:
        """Show a piece of text to whoever watches; its row is written with the next commit. A replay says nothing
        twice."""
        self._outputs.say(text)

    async def handoff(
        self,
        target: AgentId | str,
        task: Message | str | None = None,
        *,
        answers: Message | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """End here without a reply: another agent goes on as this run. Never returns."""
        await handoff.hand_over(self, target, task, answers, closing)

    async def emit(self, topic: TopicId | str, data: Any, *, id: str | None = None) -> None:
        await graph.emit(self, topic, data, id)

    async def follow(self, topic: TopicId | str, *, session: bool = False, every_s: int = 0) -> None:
        await graph.follow(self, topic, session, every_s)

    async def unfollow(self, topic: TopicId | str, *, session: bool = False) -> None:
        await graph.unfollow(self, topic, session)

    async def update_follows(self, metadata: Mapping[str, Any]) -> None:
        await follow_metadata.update(self, metadata)

    async def log(self, kind: str, data: Any = None) -> None:
        check_text("kind", kind, MAX_NAME)
        path = self._path()
        row = self.effects.journal.find(path)
        if row is not None:
            self.effects.identity(row, "log", kind, None)
            self.effects.journal.take_now(row)
            return
        entry, begun = Entry(kind="log", path=path, name=kind, result=data), self.effects.journal.started(path)
        if begun is not None and begun.kind == decisions.KIND:
            await approvals.withdraw(self, begun, entry)
        else:
            self.effects.note(entry)

    _log = log

    async def log_once(self, key: str, data: Any = None) -> None:
        """`log`, but for once in the run's generation, wherever and however often the code comes by."""
        check_text("key", key, MAX_NAME)
        self.effects.note_once(Entry(kind="log", path=f"@once.{key}", name=key, result=data))

    async def pin(self, name: str, compute: Callable[[], Any]) -> Any:
        """The JSON value that `compute` gives, sync or async: once in the run, a replay has the recorded one."""
        return await pins.pin(self, name, compute)

    def patched(self, name: str) -> bool:
        """Whether this run takes the new branch of changed code: False for one that went by here before the change."""
        if name not in self._patches:
            marker, journal = Entry(kind="patched", path=f"@patched.{name}", name=name), self.effects.journal
            passed = journal.replaying or journal.begun_and_not_in(self.effects.asked)
            self._patches[name] = journal.system(marker.path) is not None or not passed
            if self._patches[name]:
                self.effects.note_once(marker)
        return self._patches[name]

    # ---------------------------------------------------------------------------------- deterministic values

    def now(self) -> datetime:
        path = self._path()
        row = self.effects.journal.find(path)
        if row is not None:
            self.effects.identity(row, "now", "", None)
            self.effects.journal.take_now(row)
            return datetime.fromisoformat(row.result)
        present = self.effects.present()
        self.effects.note(Entry(kind="now", path=path, result=present.isoformat()))
        return present

    def random(self) -> float:
        return random.Random(self._seed("random")).random()  # noqa: S311 - reproducible on purpose

    def uuid(self) -> UUID:
        return UUID(bytes=self._seed("uuid")[:16], version=4)

    def _seed(self, what: str) -> bytes:
        run = self.effects.lease.run
        maker = self.effects.journal.origin or run.id  # in the past that a fork shares, the run that recorded it
        return hashlib.sha256(f"{maker}:{run.generation}:{self._path()}:{what}".encode()).digest()

    # ------------------------------------------------------------------------------------------- control

    async def hook(self, event: HookEvent, **data: Any) -> None:
        """Tell the agent's hooks, unless a replay only passes by here. Never raises."""
        if not self.hooks.listens_to(event) or (event in _OF_THE_CODE and self.effects.journal.replaying):
            return
        with paths.entered(None):  # a hook is no part of the run
            await self.hooks.fire(HookCall(event, self.run_id, self.session_id, self.agent_id, frozen(data)))

    def check(self) -> None:
        self.meta.cancellation.check()
        self.effects.check_may_go_on()

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of the tool call that this code belongs to."""
        scope = paths.current()
        run = self.effects.lease.run
        place = scope.prefix if scope is not None else ""
        origin = None if "/" in place else self.effects.journal.origin  # a tool that runs is this run's own effect
        above, slash, own = place.rpartition("/")
        place = above + slash + _BEHIND_PAUSE.sub("", own)
        return hashlib.sha256(f"{origin or run.id}:{run.generation}:{place}".encode()).hexdigest()

    @contextmanager
    def scope(self, name: str, *, call_id: str = "") -> Iterator[None]:
        with paths.entered(self._scope().for_name(name, call_id)):
            yield

    def decided(self, name: str) -> bool | None:
        """Whether the journal has a call right inside the scope `name` of here: a replay has to make it then, and must
        not make it otherwise, whatever it would decide by itself. None: nothing is recorded beyond here, decide."""
        if self.effects.journal.find(f"{self._scope().peek(name)}1") is not None:
            return True
        return False if self.effects.journal.replaying else None

    def is_recorded(self) -> bool:
        """Whether the next call here has its result in the journal: it does nothing then, but to give that."""
        return self.effects.journal.find(self.next_path()) is not None

    def next_path(self) -> str:
        scope = self._scope()
        return f"{scope.prefix}{scope.calls + 1}"

    def _scope(self) -> paths.Scope:
        scope = paths.current()
        if scope is None:
            raise RuntimeError(
                "this code runs outside of the run's own tasks; use asyncio.create_task, gather or a TaskGroup "
                "inside the agent, not threads or other loops"
            )
        return scope

    def _path(self) -> str:
        path = self._scope().next_path()
        if len(path) > MAX_PATH:
            raise InvalidInputError(f"the scopes here are nested too deep, or named too long: {path!r}", field="path")
        return path

    # ------------------------------------------------------------------------------------------- history

    def remember(self, agent_id: AgentId, session_id: str, messages: Sequence[ChatMessage], start: int | None) -> None:
        """Store turns with the next commit; those stored in an earlier lease are known by their index in the run.

        Without `start` they follow what this run's code has handed over before; those that have one are counted by
        themselves, and these come in between.
        """
        self._own_session(session_id)
        scope = paths.current()
        if scope is not None and "/" in scope.prefix:
            self._count_in(scope.prefix.rpartition("/")[0], len(messages))
        if start is None:
            first = self.turns_given
            self._unnumbered += len(messages)
        else:
            first = self.effects.lease.run.turn_from + self._unnumbered + start
        while messages and first in self.effects.summaries and keeps_of(messages[0]) is None:
            first += 1  # the place of a summary that nobody hands over any more
            self._unnumbered += 1
        self.turns_given = max(self.turns_given, first + len(messages))
        for place, message in enumerate(messages, first):
            if place >= self.turns_known:
                self.effects.turns.append(NewTurn(UUID(str(session_id)), str(agent_id), message))
                self.turns_known += 1

    def turns_in(self, path: str) -> int:
        """How many turns the tool's call at `path` has handed over so far."""
        return self._given_in.get(path, 0)

    def turns_of(self, path: str) -> int:
        """How many turns the tool's call at `path` has handed over: for its row, since a replay does not run it."""
        given = self._given_in.pop(path, 0)
        self._count_in(path.rpartition("/")[0], given)
        return given

    def pass_turns(self, path: str, given: int) -> None:
        """A recorded tool's call has handed over so many, in another lease."""
        self.turns_given += given
        self._unnumbered += given
        self._count_in(path.rpartition("/")[0], given)

    def _count_in(self, path: str, given: int) -> None:
        if path and given:
            self._given_in[path] = self._given_in.get(path, 0) + given

    async def seed_history(self, agent_id: AgentId, session_id: str, messages: Sequence[ChatMessage]) -> bool:
        """Turns that are older than the run, and no part of it: stored at once, unless the conversation has some. Who
        reads the history after that sees them."""
        self._own_session(session_id)
        with self.effects.busy():
            seeded, end = await self.effects.database.call(history.seed, agent_id, session_id, messages)
        self.effects.lease.run.session.next_position = end
        return seeded

    def _own_session(self, session_id: str) -> None:
        if str(session_id) != self.session_id:
            raise InvalidInputError(
                f"a run writes the history of its own session {self.session_id}, not of {session_id}",
                field="session_id",
            )

    async def read_history(
        self, agent_id: AgentId, *, limit: int | None, offset: int = 0, window: bool = False
    ) -> list[ChatMessage]:
        """The session's earlier turns, or with `window` what a prompt begins with; the position is journaled, so a
        replay reads the same ones."""
        path = self._path()
        row = self.effects.journal.find(path)
        if row is not None:
            self.effects.identity(row, "history.read", str(agent_id), None)
            self.effects.journal.take_now(row)
            position = row.result["position"]
        else:
            position = self.effects.lease.run.session.next_position
        messages: list[ChatMessage] = []
        if position:  # a new conversation has nothing to read
            where: dict[str, Any] = {"limit": limit, "before": position} | ({} if window else {"offset": offset})
            read = history.read_window if window else history.read
            with self.effects.busy():
                messages = await self.effects.database.call(read, agent_id, self.session_id, **where)
        digest = hashlib.sha256(b"".join(message.digest for message in messages)).hexdigest()[:32]
        if row is None:
            result = {"position": position, "count": len(messages), "digest": digest}
            self.effects.note(Entry(kind="history.read", path=path, name=str(agent_id), result=result))
        elif row.result["digest"] != digest:
            self.effects.note_drift(path, ["history"])
        return messages
