"""The memory of one agent, and the view of it that the model gets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ravi_django.agents.budget import ExecutionTracker
from ravi_django.agents.current import (
    _task_ctx,
    _task_may_summarize,
    _task_model,
    _task_run_id,
    _task_threads,
    _task_turns,
)
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline, CompactionStrategy
from ravi_django.agents.memory.compaction.windows import SlidingWindowCompaction
from ravi_django.agents.memory.history import Address, HistoryProvider
from ravi_django.agents.memory.transcript import (
    POSITION,
    Transcript,
    close_dangling,
    for_model,
    is_users,
    keeps_of,
    make_summary,
    makes_calls,
    normalized,
    summary_text,
)
from ravi_django.agents.messages import HANDED, SHARED, TASK, message_to_chat
from ravi_django.kernel import (
    AgentContextProtocol,
    AgentId,
    ChatMessage,
    ChatPayload,
    HistoryRetention,
    InvalidInputError,
    Message,
    Role,
)


class ContextConfig:
    """The memory of an agent. One object serves all its runs.

    history: stores turns; None keeps nothing.
    pipeline: shortens the model's view of them; None is a window of the newest 100 to 150 messages.
    retention: "permanent" keeps turns with the session, "run" drops them when the run ends, "none" stores nothing.
    """

    def __init__(
        self,
        history: HistoryProvider | None = None,
        pipeline: CompactionStrategy | None = None,
        retention: HistoryRetention | str = HistoryRetention.PERMANENT,
    ) -> None:
        if isinstance(history, type) or (history is not None and not callable(getattr(history, "append_many", None))):
            raise TypeError(f"not a history provider: {history!r}; use ContextConfig(InMemoryHistoryProvider())")
        if isinstance(pipeline, type) or (pipeline is not None and not callable(getattr(pipeline, "compact", None))):
            raise TypeError(f"not a compaction pipeline: {pipeline!r}; pass a CompactionPipeline(…) of strategies")
        self.history = history
        self.pipeline: CompactionStrategy = (
            CompactionPipeline(SlidingWindowCompaction()) if pipeline is None else pipeline
        )
        if retention not in list(HistoryRetention):
            known = ", ".join(HistoryRetention)
            raise InvalidInputError(f"retention must be one of {known}, not {retention!r}", field="retention")
        self.retention = HistoryRetention(retention)
        self.takes_history = False  # whether `register` of the agent sets `history` to the site's database

    @classmethod
    def by_default(
        cls,
        history: HistoryProvider | None = None,
        pipeline: CompactionStrategy | None = None,
        retention: HistoryRetention | str = HistoryRetention.PERMANENT,
    ) -> ContextConfig:
        """The memory of an agent that was given no `context`: without a `history` that of the site's database."""
        context = cls(history, pipeline, retention)
        context.takes_history = history is None and context.retention is not HistoryRetention.NONE
        return context

    @classmethod
    def of(cls, context: ContextConfig | AgentContextProtocol | None) -> ContextConfig:
        """Without one, a memory that keeps nothing. Raises TypeError."""
        if callable(getattr(context, "get_prompt_window", None)) and not isinstance(context, type | ContextConfig):
            return cls(cast(HistoryProvider, _Window(cast(AgentContextProtocol, context))), CompactionPipeline())
        if context is not None and not isinstance(context, ContextConfig):
            raise TypeError(
                f"context must be a ContextConfig, not {context!r}; use ContextConfig(…) around it, or pass an object "
                "with `async def get_prompt_window(self, session_id)`"
            )
        return context or cls()

    @classmethod
    def stated(
        cls, context: ContextConfig | AgentContextProtocol | None, retention: HistoryRetention | str | None
    ) -> ContextConfig:
        """By the arguments of an agent: either `context` or the `retention` of the default memory."""
        if context is None:
            return cls.by_default(retention=retention or HistoryRetention.PERMANENT)
        if retention is not None:
            raise InvalidInputError(
                f"retention={retention!r} beside context=…; pass it to the ContextConfig", field="retention"
            )
        return cls.of(context)

    @property
    def stores(self) -> HistoryProvider | None:
        """The history that stores new turns; None if they are not stored."""
        return None if self.retention is HistoryRetention.NONE else self.history

    def bind(
        self, agent_id: AgentId | str, *, instructions: Sequence[ChatMessage] = (), model: Any = None
    ) -> AgentContext:
        """The memory of one agent. `instructions` are its system messages, if known before a run. `model` counts
        tokens."""
        return AgentContext(self, agent_id, instructions=instructions, model=model)

    async def get_prompt_window(self, session_id: str, *, agent_id: AgentId | str | None = None) -> list[ChatMessage]:
        """The conversation as the agent's model gets it. Raises InvalidInputError without `agent_id`; `agent.context`
        needs none."""
        if agent_id is None:
            raise InvalidInputError(
                "agent_id is missing; pass agent_id=…, or call agent.context.get_prompt_window(…)",
                field="agent_id",
            )
        return await self.bind(agent_id).get_prompt_window(session_id)


class _Window:
    """A context of another class as a history: a run reads its window once, and stores no turns in it."""

    def __init__(self, context: AgentContextProtocol) -> None:
        self._context = context

    async def get(self, agent_id: Address, session_id: str, **options: Any) -> list[ChatMessage]:
        async def read() -> list[dict[str, Any]]:
            return [message.to_json() for message in await self._context.get_prompt_window(session_id)]

        pin = getattr(_task_ctx.get(), "pin", None)  # recorded: a replay gets the same window
        rows = await (read() if pin is None else pin(f"window.{session_id}.{agent_id}"[:200], read))
        return [ChatMessage.model_validate(row) for row in rows]

    async def append_many(self, *args: Any, **options: Any) -> None:
        """The object keeps its own turns."""


class AgentContext(ContextConfig):
    """A ContextConfig bound to one agent. `get_prompt_window` returns what the agent's loop sends to the model: both
    use the same pipeline over the same messages."""

    def __init__(
        self,
        config: ContextConfig,
        agent_id: AgentId | str,
        *,
        instructions: Sequence[ChatMessage] = (),
        model: Any = None,
    ) -> None:
        self.__dict__.update(vars(config))
        self.agent_id = AgentId.parse(str(agent_id))
        self.instructions = list(instructions)
        self.model = model

    async def get_prompt_window(self, session_id: str, *, agent_id: AgentId | str | None = None) -> list[ChatMessage]:
        """The conversation as the model would get it now: the instructions that are known before a run, and the history
        through the pipeline. Makes at most two queries if the pipeline has a `reach`.

        Inside a run of the agent it is the run's own conversation up to now. Calls no model: a due summary is made
        before the next model call.
        """
        if agent_id is not None and AgentId.parse(str(agent_id)) != self.agent_id:
            return await super().get_prompt_window(session_id, agent_id=agent_id)
        thread = (_task_threads.get() or {}).get((str(self.agent_id), str(session_id)))
        messages = (await self._load(session_id, self.instructions)).messages if thread is None else thread.messages
        frozen = _task_may_summarize.set(False)  # only the loop makes and stores summaries
        try:
            return for_model(await self._compact(messages))
        finally:
            _task_may_summarize.reset(frozen)

    async def open(self, session_id: str, instructions: Sequence[ChatMessage] | None = None) -> Thread:
        """Load the session at the start of a run. The agent's loop then sends `view` to its model and passes new turns
        to `add`. `instructions` are the system messages; None: those that are known before a run."""
        threads, key = _task_threads.get(), (str(self.agent_id), str(session_id))
        known: Thread | None = None if threads is None else threads.get(key)
        if known is not None:
            return known  # opened for an earlier message; the history that a run reads lacks its turns
        thread = await self._load(session_id, self.instructions if instructions is None else instructions)
        if threads is not None:
            threads[key] = thread
        return thread

    async def view(self, thread: Thread, tracker: ExecutionTracker | None = None) -> list[ChatMessage]:
        """The model's view of the thread. A summary made here is added to the thread, and its cost to the tracker."""
        view = await self._compact(thread.messages)
        summary = _new_summary(view, thread.messages)
        if summary is not None:
            await self._keep(thread, summary, tracker)
        is_whole = summary is None and len(view) == len(thread.messages) and thread.messages.summary is None
        return view if is_whole else for_model(view)

    async def take(self, thread: Thread, msg: Message) -> None:
        """Append a message of the run's inbox and store it. All agents of the session read it if it is from the run's
        person. A message that the conversation has from the agent that handed over is not appended again."""
        turn, is_there = message_to_chat(msg), msg.metadata.get(HANDED) == SHARED
        if not (is_there and any(is_users(one) and one.content == turn.content for one in thread.messages)):
            await self.add(thread, turn, shared=is_persons(msg) and not is_there)

    async def add(self, thread: Thread, turn: ChatMessage, *, shared: bool | None = None) -> None:
        """Append a turn and store it at once, so it is kept however the run ends. `shared`: whether all agents of the
        session read it; None: see `persist_turns`."""
        thread.messages.append(turn)
        await self._store(thread, turn, shared)

    async def _load(self, session_id: str, instructions: Sequence[ChatMessage]) -> Thread:
        history = await _turns_of(self, self.agent_id, session_id)
        return Thread(session_id, Transcript([*instructions, *history]))

    async def _compact(self, messages: Transcript) -> list[ChatMessage]:
        counted_by = _task_model.set(self.model)
        try:
            view = await self.pipeline.compact(normalized(messages))
            return view if type(view) is list else list(view)
        finally:
            _task_model.reset(counted_by)

    async def _keep(self, thread: Thread, summary: ChatMessage, tracker: ExecutionTracker | None) -> None:
        thread.messages.append(_placed(summary, thread.messages))
        if keeps_summaries(self.history):
            await self._store(thread, thread.messages[-1])
        response = summary._wire.get("response")
        if tracker is not None and response is not None:
            tracker.consume(tokens=response.usage.total, turns=0, cost=response.cost)

    async def _store(self, thread: Thread, turn: ChatMessage, shared: bool | None = None) -> None:
        run_id = _task_run_id.get() or ""
        # Inside a run the run counts the turns: its code may have other threads, or run the agent again.
        start = thread.stored if _task_turns.get() is None else None
        shared_indexes = None if shared is None else range(shared)
        await persist_turns(self, self.agent_id, thread.session_id, run_id, [turn], start=start, shared=shared_indexes)
        thread.stored += 1


def _new_summary(view: Sequence[ChatMessage], messages: Transcript) -> ChatMessage | None:
    known = None if messages.summary is None else messages[messages.summary]
    for message in view:
        if message.role is not Role.SYSTEM:
            return None
        if message is not known and keeps_of(message) is not None:
            again = (
                message == known and "response" not in message._wire
            )  # a strategy without a model makes the same summary each time
            return None if again else message
    return None


def _placed(summary: ChatMessage, messages: Transcript) -> ChatMessage:
    """The summary with `keeps` counted in the whole conversation: earlier strategies may have dropped turns."""
    since = summary._wire.get("since")
    keeps = 0
    for message in reversed(messages):
        keeps += keeps_of(message) is None
        if message is since:
            return make_summary(summary_text(summary), keeps)
    return summary


@dataclass(slots=True)
class Thread:
    session_id: str
    messages: Transcript  # system message, history, and what this run has added
    stored: int = 0  # turns of this run that were passed to the history


async def load_history(cfg: ContextConfig, agent_id: Address, session_id: str) -> list[ChatMessage]:
    """The session's turns as the pipeline shortens them, oldest first. Calls no model: summaries are those that are
    stored."""
    return await cfg.bind(agent_id).get_prompt_window(session_id)


async def _turns_of(cfg: ContextConfig, agent_id: Address, session_id: str) -> list[ChatMessage]:
    """The session's turns, oldest first, as far back as the pipeline's `reach`, from the last summary on, and with a
    user's message before the rest.

    A tool call without a result gets an "interrupted" one in the returned list. Nothing stored is changed.
    """
    if cfg.history is None:
        return []
    reach = getattr(cfg.pipeline, "reach", None)
    if keeps_summaries(cfg.history):
        return list(await cfg.history.window(agent_id, session_id, limit=reach))  # type: ignore[attr-defined]
    return close_dangling(normalized(await _read(cfg.history, agent_id, session_id, reach)))


async def _read(history: HistoryProvider, agent_id: Address, session_id: str, reach: int | None) -> list[ChatMessage]:
    """Read from a provider without `window`."""
    if reach is None:
        return await history.get(agent_id, session_id)
    turns = page = await history.get(agent_id, session_id, limit=reach)
    while len(page) >= reach and not is_users(turns[0]):  # a window must start with a user's message
        page = await history.get(agent_id, session_id, limit=reach, offset=len(turns))
        last = next((index for index in range(len(page) - 1, -1, -1) if is_users(page[index])), 0)
        turns = page[last:] + turns
    if len(turns) >= reach:
        count, pin = partial(history.count, agent_id, session_id), getattr(_task_ctx.get(), "pin", None)
        # recorded: a count in a replay may include turns of this run
        end = await (count() if pin is None else pin(f"turns.{session_id}.{agent_id}"[:200], count))
        for position, turn in enumerate(reversed(turns), 1):
            turn._wire[POSITION] = end - position
    return turns


def keeps_summaries(history: HistoryProvider | None) -> bool:
    return callable(getattr(history, "window", None))


async def persist_turns(
    cfg: ContextConfig,
    agent_id: Address,
    session_id: str,
    run_id: str,
    new_turns: Sequence[ChatMessage],
    start: int | None = None,
    shared: Collection[int] | None = None,
) -> None:
    """Store a run's turns. The first is the run's turn `start`, or follows the turns stored before. Storing a turn
    again is a no-op.

    All agents of the session read the turns at the indexes `shared`, if the history can share. None: in a root run the
    words of its person and the last text without tool calls.
    """
    counter = _task_turns.get()
    if start is None:
        start = counter[0] if counter else 0
    if counter is not None:
        counter[0] = start + len(new_turns)
    if cfg.stores is not None and new_turns:
        _dropped_by_the_runtime(cfg, agent_id, session_id)
        options: dict[str, Any] = {}
        is_kept = cfg.retention is HistoryRetention.PERMANENT  # others must not read what the end of the run deletes
        if is_kept and getattr(cfg.stores, "shares", False) and _is_root(_task_ctx.get()):
            indexes = _known_indexes(new_turns) if shared is None else shared
            options["shared"] = {
                i for i in indexes if _sharer(_task_ctx.get(), agent_id, new_turns[i]) == str(agent_id)
            }
        await cfg.stores.append_many(agent_id, session_id, new_turns, run_id=run_id, start=start, **options)


def is_persons(msg: Message) -> bool:
    """Whether a person wrote the message: it is no publication, no data of a source and no task of an agent."""
    is_task = msg.sender is not None or msg.metadata.get(HANDED) == TASK
    return isinstance(msg.payload, ChatPayload) and not (is_task or msg.is_broadcast)


def _is_root(ctx: Any) -> bool:
    supervision = None if ctx is None else ctx.meta.supervision
    return supervision is not None and supervision.parent_id is None


def _sharer(ctx: Any, agent_id: Address, turn: ChatMessage) -> str:
    """Of several agents in one run the first shares its person's words, and the run's own agent the answer."""
    return str(ctx.agent_id if turn.role is Role.ASSISTANT else ctx.shared_by.get(turn.digest, agent_id))


def _known_indexes(turns: Sequence[ChatMessage]) -> set[int]:
    of_users = [index for index, turn in enumerate(turns) if turn.role is Role.USER]
    messages = [msg for msg in getattr(_task_ctx.get(), "messages_given", ()) if of_users and is_persons(msg)]
    contents = [message_to_chat(msg).content for msg in messages]
    texts = (index for index, turn in enumerate(turns) if turn.role is Role.ASSISTANT and not makes_calls(turn))
    answers = [index for index in texts if turns[index].text]
    return {*(index for index in of_users if turns[index].content in contents), *answers[-1:]}


async def drop_turns(cfg: ContextConfig, agent_id: Address, session_id: str, run_id: str) -> None:
    """Delete an ended run's turns if the retention is "run"."""
    if cfg.history is None or cfg.retention is not HistoryRetention.RUN:
        return
    if not _dropped_by_the_runtime(cfg, agent_id, session_id):
        await cfg.history.clear_run(agent_id, session_id, run_id)


def _dropped_by_the_runtime(cfg: ContextConfig, agent_id: Address, session_id: str) -> bool:
    """Whether the history itself drops the turns when the run ends. That also covers an end without the agent's code,
    such as a cancellation while the run waits."""
    drops = getattr(cfg.history, "drops_at_end", None) if cfg.retention is HistoryRetention.RUN else None
    return callable(drops) and bool(drops(agent_id, session_id))
