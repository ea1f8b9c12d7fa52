"""What one lease knows of its run: the attributes that features read and write, and where in the code it is.

`context.DurableContext` adds the methods that an agent calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from ravi_django.agents.hooks import Hooks, frozen
from ravi_django.agents.memory.transcript import keeps_of
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import (
    Agent,
    AgentId,
    ChatMessage,
    ChatModel,
    HookCall,
    HookEvent,
    InvalidInputError,
    Message,
    RunMeta,
    SpawnBudget,
)
from ravi_django.runtime.journal.entries import Entry, NewTurn, storable
from ravi_django.runtime.lease import paths
from ravi_django.runtime.lease.effects import Effects

current: ContextVar[RunState | None] = ContextVar("ravi_context", default=None)


def current_context() -> RunState | None:
    """The context of the run that this code belongs to; None outside of runs."""
    return current.get()


# Fired by the agent's own code, which a replay runs again; the others only where something is really done.
_OF_THE_CODE = (HookEvent.STEP_START, HookEvent.STEP_END, HookEvent.FLOW_START, HookEvent.FLOW_END)
MAX_PATH = 450
_BEHIND_PAUSE = re.compile(r"^~\d+\.")  # see `place_after` in `tools/running.py`


OUTPUT = "chat.output"


class RunState:
    """A run as its holder has it in memory, from the claim to the end of the lease."""

    def __init__(self, agent: Agent, effects: Effects, meta: RunMeta, middleware: MiddlewarePipeline) -> None:
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
        self.middleware = middleware
        self.hooks = Hooks.of(getattr(agent, "hooks", None))
        self.output: Any = None  # what was replied last
        self.replied = False
        self.given: list[Message] = []  # to this generation's code, so far
        self.hops = 0  # publications behind what the code was given last
        self.answered: set[str] = set()  # of those: the ids of the messages that were replied to
        self.message_ids: dict[str, str] = {}  # of messages that a replay makes anew: the id that was sent
        self.booted: dict[str, str] = {}  # child run: the message that it was started with
        self.deciding = asyncio.Lock()  # calls that people have decided on go on in the order of their rows
        self.pinned: dict[str, Any] = {}  # see `pins`
        self.pinning: dict[str, Any] = {}  # values that a task computes now
        self.turns_given = run.turn_from  # how many this lease's code has handed over
        self.turns_known = run.next_turn  # history turns of this run that are stored or waiting to be
        self._unnumbered = 0  # of those given: without a number of their own
        self.outputs = Outputs(self)
        self._given_in: dict[str, int] = {}  # how many a tool's call has handed over, by its path

    async def hook(self, event: HookEvent, **data: Any) -> None:
        """Tell the agent's hooks, unless a replay only passes by here. Never raises."""
        if not self.hooks.listens_to(event) or (event in _OF_THE_CODE and self.effects.journal.replaying):
            return
        with paths.entered(None):  # a hook is no part of the run
            await self.hooks.fire(HookCall(event, self.run_id, self.session_id, self.agent_id, frozen(data)))

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
        with paths.entered(self.here().for_name(name, call_id)):
            yield

    def decided(self, name: str) -> bool | None:
        """Whether the journal has a call right inside the scope `name` of here: a replay has to make it then, and must
        not make it otherwise, whatever it would decide by itself. None: nothing is recorded beyond here, decide."""
        if self.effects.journal.find(f"{self.here().peek(name)}1") is not None:
            return True
        return False if self.effects.journal.replaying else None

    def is_recorded(self) -> bool:
        """Whether the next call here has its result in the journal: it does nothing then, but to give that."""
        return self.effects.journal.find(self.next_path()) is not None

    def next_path(self) -> str:
        scope = self.here()
        return f"{scope.prefix}{scope.calls + 1}"

    def here(self) -> paths.Scope:
        scope = paths.current()
        if scope is None:
            raise RuntimeError(
                "this code runs outside of the run's own tasks; use asyncio.create_task, gather or a TaskGroup "
                "inside the agent, not threads or other loops"
            )
        return scope

    def path(self) -> str:
        path = self.here().next_path()
        if len(path) > MAX_PATH:
            raise InvalidInputError(f"the scopes here are nested too deep, or named too long: {path!r}", field="path")
        return path

    def remember(self, agent_id: AgentId, session_id: str, messages: Sequence[ChatMessage], start: int | None) -> None:
        """Store turns with the next commit; those stored in an earlier lease are known by their index in the run.

        Without `start` they follow what this run's code has handed over before; those that have one are counted by
        themselves, and these come in between.
        """
        self.check_session(session_id)
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

    def check_session(self, session_id: str) -> None:
        if str(session_id) != self.session_id:
            raise InvalidInputError(
                f"a run writes the history of its own session {self.session_id}, not of {session_id}",
                field="session_id",
            )


class Outputs:
    """One row takes every piece up to the commit that it rides on; what comes after that begins another."""

    def __init__(self, ctx: RunState) -> None:
        self._ctx = ctx
        self._entry: Entry | None = None  # takes more, while it is not written
        self._recorded = 0  # characters of the row that a replay passes by, still to come

    def say(self, text: str) -> None:
        text = str(storable(text))
        if not text:
            return
        if self._recorded > 0:
            self._recorded -= len(text)
            return
        effects = self._ctx.effects
        entry = self._entry
        if entry is None or not any(note is entry for note in effects.notes):
            path = self._ctx.path()
            row = effects.journal.find(path)
            if row is not None:
                effects.identity(row, OUTPUT, "", None)
                effects.journal.take_now(row)
                self._recorded = len(row.result["text"]) - len(text)
                return
            entry = self._entry = Entry(OUTPUT, path, result={"text": ""})
            effects.note(entry)
        entry.result["text"] += text
        attempt = f"{effects.lease.epoch}.said"  # said again in a later lease, it replaces what came of it before
        effects.delta("text.delta", text, call=entry.path, attempt=attempt)
