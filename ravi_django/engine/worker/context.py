"""The context of an agent's code: effects are looked up in the journal, and durable before the next act."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ravi_django import wing
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.calls.middleware import chain
from ravi_django.calls.model import call as model_calls
from ravi_django.calls.tools import call as tool_calls, uncertain
from ravi_django.engine.journal.entries import Entry
from ravi_django.engine.lease import inbox, pins, sleeps
from ravi_django.engine.lease.inbox import as_depth, publication_depth
from ravi_django.engine.lease.lease_state import Stop
from ravi_django.engine.lease.recorder import Recorder
from ravi_django.engine.lease.state import RunState
from ravi_django.kernel import (
    Agent,
    AgentId,
    AskOutcome,
    ChatMessage,
    ChatModel,
    ControlPayload,
    GenerationOptions,
    HumanInput,
    InvalidInputError,
    Message,
    ModelResponse,
    Priority,
    Risk,
    RunHandle,
    RunMeta,
    ToolExecutionResult,
    TopicId,
)
from ravi_django.kernel.checks import check_span, check_text
from ravi_django.kernel.json_values import check_json
from ravi_django.live.streams import hidden
from ravi_django.people import approvals, client_calls, requests, sticky
from ravi_django.runs import shared_state
from ravi_django.runs.catalog import registry
from ravi_django.runs.lifecycle import endings, generations
from ravi_django.runs.teams import asks, spawn as children

MAX_NAME = 200  # characters, as the journal's columns


def _address(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    try:
        return AgentId.parse(target)
    except InvalidInputError as error:  # the note is for the log: owners of runs read the error
        error.add_note(registry.near_key(target, registry.known_addresses()).strip(". "))
        raise


class DurableContext(RunState):
    """The RunContext of one lease. `kernel/contracts.py` documents the methods."""

    def __init__(self, agent: Agent, recorder: Recorder, meta: RunMeta) -> None:
        of_agent = MiddlewarePipeline.of(getattr(agent, "middleware", None))
        super().__init__(agent, recorder, meta, chain.around(of_agent))
        self._patches: dict[str, bool] = {}

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
        return await model_calls.call(self, chosen, messages, options or GenerationOptions())

    async def tool(self, name: str, /, **arguments: Any) -> ToolExecutionResult:
        return await tool_calls.call(self, name, arguments)

    async def reply(self, message: Message, result: Any) -> None:
        """Answer a message. The last reply is the run's output; it is stored when the run ends."""
        self.output, self.replied = result, True
        self.answered.add(message.id)
        if message.reply_to and message.reply_to != self.run_id:
            await asks.reply(self, message, result)

    async def spawn(
        self,
        target: AgentId | str,
        boot: Message | str | None = None,
        *,
        priority: Priority | None = None,
        memory: str = "none",
    ) -> RunHandle:
        return await children.spawn(self, _address(target), boot, priority, memory)

    async def ask(
        self,
        target: RunHandle | AgentId | str,
        message: Message | str,
        *,
        timeout: float | timedelta | None = None,
        memory: str = "none",
    ) -> AskOutcome:
        return await asks.ask(self, _address(target), message, timeout, memory)

    async def join(self, handle: RunHandle, *, timeout: float | timedelta | None = None) -> AskOutcome:
        return await asks.ask(self, handle, None, timeout)

    async def send(self, target: AgentId | RunHandle | TopicId | str, message: Message | str) -> None:
        if isinstance(target, TopicId):
            return await self.emit(target, message)
        to = _address(target)
        if isinstance(message, Message) and isinstance(message.payload, ControlPayload):
            await endings.control(self, to, message, message.payload)
        else:
            await asks.send(self, to, message)

    async def sleep(self, duration: float | timedelta) -> None:
        await sleeps.sleep_until(self, timedelta(seconds=check_span("duration", duration)))

    async def sleep_until(self, when: datetime | timedelta | float) -> None:
        await sleeps.sleep_until(self, when)

    async def sleep_until_signal(
        self,
        name: str,
        *,
        until: datetime | timedelta | float | None = None,
        timeout: float | timedelta | None = None,
        or_message: bool = False,
    ) -> Any:
        return await sleeps.sleep_until_signal(self, name, until, timeout, or_message=or_message)

    def stay_awake(self) -> AbstractContextManager[None]:
        return self.waits.busy()

    async def receive(self) -> list[Message]:
        """The messages that arrived after those that the code was given. Does not wait."""
        return await inbox.receive(self)

    async def hear(self) -> list[Message]:
        """The messages that steer the run and that the code was not given yet. Does not wait."""
        with self.scope("heard"):  # numbered at each call: a replay hears where the first execution did
            return await inbox.hear(self)

    def caused_by(self, message: Message) -> None:
        self.publication_depth, self.caused = publication_depth([message]), message.id

    async def ask_human(
        self,
        question: str,
        choices: Sequence[str] | None = None,
        context: str = "",
        free_text: bool = True,
        timeout: float | timedelta | None = None,
        to: Any = None,
        signal: str = "",
    ) -> HumanInput:
        asked = {"choices": choices, "context": context, "free_text": free_text, "timeout": timeout, "to": to}
        return await requests.ask(self, question, **asked, signal=signal)

    async def ask_client(self, tool: str, arguments: dict[str, Any]) -> HumanInput:
        """Ask the owner's client to run one of its tools, and wait: see ClientTool."""
        return await client_calls.ask(self, tool, arguments)

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
    ) -> HumanInput:
        more: dict[str, Any] = {"call_id": call_id, "schema": schema, "description": description}
        more["hidden"] = bool(hidden.of_tool(self.toolbox.get(tool)))
        until = requests.expiry(self, timeout)
        asked = approvals.checked(tool, arguments, risk=risk, to=to, expires_at=until, **more)
        return await approvals.ask(self, asked)

    async def set_state(self, value: dict[str, Any]) -> None:
        await shared_state.set_state(self, value)

    async def continue_as_new(self, state: Any = None) -> None:
        following = check_json("state", state)
        if self.recorder.state.left_open():  # uncertain effects are decided before the journal starts again
            await uncertain.decide_left(self)
        depth = as_depth(self.publication_depth)
        await self.waits.end(Stop(Stop.Kind.CONTINUE, state=following, depth=depth))

    def say(self, text: str) -> None:
        """Stream a piece of text; its row is written with the next commit. A replay does not stream it again."""
        self.outputs.say(text)

    async def handoff(
        self,
        target: AgentId | str,
        task: Message | str | None = None,
        *,
        answers: Message | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
        context: bool = True,
    ) -> None:
        """End without a reply: another agent continues this run. Never returns."""
        await generations.hand_over(self, target, task, answers, closing, context)

    async def emit(self, topic: TopicId | str, data: Any, *, id: str | None = None) -> None:
        await wing.call("ctx.emit")(self, topic, data, id)

    async def follow(self, topic: TopicId | str, *, session: bool = False, every_s: int | timedelta = 0) -> None:
        await wing.call("ctx.follow")(self, topic, session, every_s)

    async def unfollow(self, topic: TopicId | str, *, session: bool = False) -> None:
        await wing.call("ctx.unfollow")(self, topic, session)

    async def update_follows(self, metadata: Mapping[str, Any]) -> None:
        await wing.call("ctx.update_follows")(self, metadata)

    async def log(self, kind: str, data: Any = None) -> None:
        check_text("kind", kind, MAX_NAME)
        path = self.path()
        if self.recorder.recall_unordered(path, "log", kind) is not None:
            return
        entry, begun = Entry(kind="log", path=path, name=kind, result=data), self.recorder.journal.started(path)
        if begun is not None and begun.kind == sticky.KIND:
            await approvals.withdraw(self, begun, entry)
        else:
            self.recorder.record_with_next(entry)

    _log = log

    async def log_once(self, key: str, data: Any = None) -> None:
        """`log` once in the run's generation, however often and wherever it is called."""
        check_text("key", key, MAX_NAME)
        self.recorder.record_with_next_once(Entry(kind="log", path=f"@once.{key}", name=key, result=data))

    async def pin(self, name: str, compute: Callable[[], Any]) -> Any:
        """The JSON value of `compute`, sync or async: computed once in the run, then recalled."""
        return await pins.pin(self, name, compute)

    def patched(self, name: str) -> bool:
        """Whether this run takes the new branch of changed code: False if it passed here before the change."""
        if name not in self._patches:
            marker, journal = Entry(kind="patched", path=f"@patched.{name}", name=name), self.recorder.journal
            passed = journal.replaying or journal.begun_and_not_in(self.recorder.state.asked)
            self._patches[name] = journal.find(marker.path) is not None or not passed
            if self._patches[name]:
                self.recorder.record_with_next_once(marker)
        return self._patches[name]

    # ---------------------------------------------------------------------------------- deterministic values

    def now(self) -> datetime:
        path = self.path()
        if (row := self.recorder.recall_unordered(path, "now")) is not None:
            return datetime.fromisoformat(row.result)
        present = self.recorder.state.present()
        self.recorder.record_with_next(Entry(kind="now", path=path, result=present.isoformat()))
        return present

    def random(self) -> float:
        return random.Random(self._seed("random")).random()  # noqa: S311 - reproducible on purpose

    def uuid(self) -> UUID:
        return UUID(bytes=self._seed("uuid")[:16], version=4)

    def _seed(self, kind: str) -> bytes:
        run = self.recorder.lease.run
        maker = self.recorder.journal.origin or run.id  # in rows that a fork has copied: the run that recorded them
        return hashlib.sha256(f"{maker}:{run.generation}:{self.path()}:{kind}".encode()).digest()

    # ------------------------------------------------------------------------------------------- control

    def check(self) -> None:
        self.meta.cancellation.check()
        self.waits.check_may_go_on()
