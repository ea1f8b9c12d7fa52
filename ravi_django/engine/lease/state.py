"""The state of a run in one lease: attributes that features read and write, and the current place in the code.

`context.DurableContext` adds the methods that an agent calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model

from ravi_django.agents.memory.transcript import keeps_of
from ravi_django.agents.middleware import Hooks, MiddlewarePipeline, frozen
from ravi_django.agents.tools.client_tool import with_client_tools
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.lease import paths
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.kernel import (
    Agent,
    AgentId,
    ChatMessage,
    ChatModel,
    HookCall,
    HookEvent,
    InvalidInputError,
    Message,
    Role,
    RunMeta,
    SpawnBudget,
    ToolRegistry,
)
from ravi_django.kernel.json_values import storable

current: ContextVar[RunState | None] = ContextVar("ravi_context", default=None)


def current_context() -> RunState | None:
    """The context of the run around this code; None outside of runs."""
    return current.get()


# Fired by the agent's own code, which a replay runs again. All others are fired only where an effect is made.
_OF_THE_CODE = (HookEvent.STEP_START, HookEvent.STEP_END, HookEvent.FLOW_START, HookEvent.FLOW_END)
MAX_PATH = 450
_BEHIND_PAUSE = re.compile(r"^~\d+\.")  # see `path_after_pause` in `tools/execute.py`
OUTPUT = "chat.output"
ALONE = "without_context"  # metadata of a run that was handed over: its agent reads its own turns alone


class RunState:
    """A run in memory, from the claim to the end of the lease."""

    def __init__(self, agent: Agent, recorder: Recorder, meta: RunMeta, middleware: MiddlewarePipeline) -> None:
        run = recorder.lease.run
        self.recorder = recorder
        self.waits = recorder.waits
        self.agent_id: AgentId = agent.id
        self.run_id = str(run.id)
        self.session_id = str(run.session_id)
        self.user_id = None if run.owner_id is None else str(run.owner_id)
        self.tenant_id: str = run.tenant
        self.meta = meta
        self.state: Any = run.state
        self.toolbox: ToolRegistry = Toolbox.of(getattr(agent, "tools", None))
        if run.client_tools:
            self.toolbox = with_client_tools(self.toolbox, getattr(agent, "client_tools", False), run.client_tools)
        self.approval: Any = getattr(agent, "approval", None)  # the gate of its tools
        self.model: ChatModel | None = getattr(agent, "model", None)
        self.spawn_budget: SpawnBudget | None = getattr(agent, "spawn_budget", None)
        self.middleware = middleware
        self.hooks = Hooks.of(getattr(agent, "hooks", None))
        self.output: Any = None  # the last reply
        self.replied = False
        self.messages_given: list[Message] = []  # messages that this generation's code was given
        self.heard = 0  # the run's `wake_seq` when `hear` looked last
        self.publication_depth = 0  # of the messages that the code was given last, see `lease/inbox.py`
        self.caused = ""  # the id of a message, see `caused_by`; later messages end it
        self.answered: set[str] = set()  # ids of the given messages that have a reply
        self.message_ids: dict[str, str] = {}  # by the new id of a message that a replay makes: the id that was sent
        self.booted: dict[str, str] = {}  # by child run: the message that it was started with
        self.following = asyncio.Lock()
        self.followed: dict[str, tuple[int, int | None]] = {}  # by topic: see `follow` in `social/calls.py`
        self.deciding = asyncio.Lock()  # calls with a person's decision continue in the order of their rows
        self.pinned: dict[str, Any] = {}  # see `pins`
        self.pinning: dict[str, Any] = {}  # values that a task computes now
        self.turns_given = run.turn_from  # history turns that this lease's code has added
        self.turns_known = run.next_turn  # history turns of this run that are stored or pending
        self._unnumbered = 0  # turns that were added without `start`
        self.shared_by: dict[
            bytes, str
        ] = {}  # digests of the person's messages that this lease's code has shared: by whom
        self.seen: dict[str, int] = {}  # by agent: the position up to which it has read the conversation
        self.outputs = Outputs(self)
        self._given_in: dict[str, int] = {}  # by path of a tool call: the turns that it has added

    @property
    def conversation(self) -> str:
        """The session of the tree's root: the `correlation_id` of messages that have none."""
        run = self.recorder.lease.run
        return str((run.root or run).session_id)

    @property
    def cause(self) -> str | None:
        """The id of the message that the code is at: that of `caused_by`, else the first one without a reply."""
        if self.caused:
            return self.caused
        waiting = (message.id for message in self.messages_given if message.id not in self.answered)
        return next(waiting, self.messages_given[-1].id if self.messages_given else None)

    async def hook(self, event: HookEvent, **data: Any) -> None:
        """Call the agent's hooks, except for an event of a replay. Never raises."""
        if not self.hooks.listens_to(event) or (event in _OF_THE_CODE and self.recorder.journal.replaying):
            return
        with paths.entered(None):  # a hook is not part of the run
            await self.hooks.fire(HookCall(event, self.run_id, self.session_id, self.agent_id, frozen(data)))

    @property
    def user(self) -> Any:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("ctx.user reads the database, which would block the event loop: use `await ctx.auser()`")
        return None if self.user_id is None else get_user_model()._default_manager.filter(pk=self.user_id).first()

    async def auser(self) -> Any:
        return await self.recorder.database.call(lambda: self.user)

    @property
    def idempotency_key(self) -> str:
        """A key of the tool call around this code, the same for each of its attempts."""
        scope = paths.current()
        run = self.recorder.lease.run
        prefix = scope.prefix if scope is not None else ""
        origin = None if "/" in prefix else self.recorder.journal.origin  # a running tool is this run's own effect
        above, slash, last = prefix.rpartition("/")
        prefix = above + slash + _BEHIND_PAUSE.sub("", last)
        return hashlib.sha256(f"{origin or run.id}:{run.generation}:{prefix}".encode()).hexdigest()

    def scope(self, name: str, *, call_id: str = "") -> paths.entered:
        return paths.entered(self.here().for_name(name, call_id))

    def decided(self, name: str) -> bool | None:
        """Whether the journal has a call in the next scope `name` here. Then a replay has to make the call, and
        otherwise must not. None: nothing is recorded from here on, so the code decides."""
        if self.recorder.journal.find(f"{self.here().peek(name)}1") is not None:
            return True
        return False if self.recorder.journal.replaying else None

    def is_recorded(self) -> bool:
        """Whether the journal has the result of the next call here."""
        return self.recorder.journal.find(self.next_path()) is not None

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

    def remember(
        self,
        agent_id: AgentId,
        session_id: str,
        messages: Sequence[ChatMessage],
        start: int | None,
        shared: Collection[int] = (),
    ) -> None:
        """Store turns with the next commit. Turns of an earlier lease are recognized by their index in the run.
        `shared`: the places of those messages that all agents of the session read.

        Without `start` they follow the turns that this run's code has added before. Turns with a `start` are numbered
        separately, and those without one come in between.
        """
        self.check_session(session_id)
        scope = paths.current()
        if scope is not None and "/" in scope.prefix:
            self._count_in(scope.prefix.rpartition("/")[0], len(messages))
        if start is None:
            first = self.turns_given
            self._unnumbered += len(messages)
        else:
            first = self.recorder.lease.run.turn_from + self._unnumbered + start
        while messages and first in self.recorder.state.summaries and keeps_of(messages[0]) is None:
            first += 1  # the place of a summary that the code no longer adds
            self._unnumbered += 1
        self.turns_given = max(self.turns_given, first + len(messages))
        self.shared_by |= {
            messages[number].digest: str(agent_id) for number in shared if messages[number].role is Role.USER
        }
        for number, message in enumerate(messages, first):
            if number >= self.turns_known:
                seen = None if keeps_of(message) is None else self.seen.get(str(agent_id))
                is_shared = number - first in shared
                turn = self.recorder.turn(UUID(str(session_id)), str(agent_id), message, shared=is_shared, seen=seen)
                self.recorder.turns.append(turn)
                self.turns_known += 1

    def turns_in(self, path: str) -> int:
        """The number of turns that the tool call at `path` has added so far."""
        return self._given_in.get(path, 0)

    def turns_of(self, path: str) -> int:
        """Take the number of turns that the tool call at `path` has added, for its row: a replay does not run it."""
        count = self._given_in.pop(path, 0)
        self._count_in(path.rpartition("/")[0], count)
        return count

    def pass_turns(self, path: str, count: int) -> None:
        """Count the turns that a recorded tool call has added in another lease."""
        self.turns_given += count
        self._unnumbered += count
        self._count_in(path.rpartition("/")[0], count)

    def _count_in(self, path: str, count: int) -> None:
        if path and count:
            self._given_in[path] = self._given_in.get(path, 0) + count

    def check_session(self, session_id: str) -> None:
        if str(session_id) != self.session_id:
            raise InvalidInputError(
                f"a run writes the history of its own session {self.session_id}, not of {session_id}",
                field="session_id",
            )


class Outputs:
    """`ctx.say`: one row collects the pieces that follow each other, until it is written."""

    def __init__(self, ctx: RunState) -> None:
        self._ctx = ctx
        self._entry: Entry | None = None  # the row that is not written yet
        self._recorded = 0  # characters of the recorded row that the replay has not reached

    def say(self, text: str) -> None:
        text = str(storable(text))
        if not text:
            return
        if self._recorded > 0:
            self._recorded -= len(text)
            return
        recorder = self._ctx.recorder
        entry = self._entry
        if entry is None or not recorder.pending or recorder.pending[-1] is not entry:
            path = self._ctx.path()
            if (row := recorder.recall_unordered(path, OUTPUT)) is not None:
                self._recorded = len(row.result["text"]) - len(text)
                return
            entry = self._entry = Entry(OUTPUT, path, result={"text": ""})
            recorder.record_with_next(entry)
        entry.result["text"] += text
        attempt = f"{recorder.lease.epoch}.said"  # the text of a later lease replaces this one
        recorder.stream.delta("text.delta", text, call=entry.path, attempt=attempt)
