"""The memory of one agent, and the window of it that the model is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ravi_django.agents._loop import keeps_summaries, load_history, persist_turns
from ravi_django.agents._task import _task_may_summarize, _task_model, _task_run_id, _task_threads, _task_turns
from ravi_django.agents.budget import ExecutionTracker
from ravi_django.agents.context import ContextConfig
from ravi_django.agents.summary import as_shown, keeps_of, make_summary, normalized, summary_text
from ravi_django.agents.thread import Thread
from ravi_django.agents.transcript import Transcript
from ravi_django.kernel import AgentId, ChatMessage, Role


class AgentContext(ContextConfig):
    """A ContextConfig that knows whose it is. What `get_prompt_window` gives is what the agent's loop sends: both
    go through the same pipeline, over the same messages."""

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
        """The conversation as the model would be shown it now: instructions (those that are known before a run), and
        the history through the pipeline. At most two queries, whatever its length, with a pipeline that bounds it.

        Inside a run of the agent it is the run's own conversation as far as it has come. No model is called: a summary
        that is due is made before the next model call.
        """
        if agent_id is not None and AgentId.parse(str(agent_id)) != self.agent_id:
            return await super().get_prompt_window(session_id, agent_id=agent_id)
        thread = (_task_threads.get() or {}).get((str(self.agent_id), str(session_id)))
        messages = (await self._load(session_id, self.instructions)).messages if thread is None else thread.messages
        frozen = _task_may_summarize.set(False)  # the loop's own call is where a summary is made, and kept
        try:
            return as_shown(await self._compact(messages))
        finally:
            _task_may_summarize.reset(frozen)

    async def open(self, session_id: str, instructions: Sequence[ChatMessage] | None = None) -> Thread:
        """The session as the run begins with it: for the loop of an agent, which shows its model `view` and hands its
        turns to `add`. `instructions` are the system messages; those that are known before a run when None."""
        threads, key = _task_threads.get(), (str(self.agent_id), str(session_id))
        known: Thread | None = None if threads is None else threads.get(key)
        if known is not None:
            return known  # opened for a message before: what was said since is in it, and in no history yet
        thread = await self._load(session_id, self.instructions if instructions is None else instructions)
        if threads is not None:
            threads[key] = thread
        return thread

    async def view(self, thread: Thread, tracker: ExecutionTracker | None = None) -> list[ChatMessage]:
        """What the model is shown of the thread now. A summary made here is added to it; the tracker is told what it
        has cost."""
        view = await self._compact(thread.messages)
        summary = _new_summary(view, thread.messages)
        if summary is not None:
            await self._keep(thread, summary, tracker)
        return as_shown(view)

    async def add(self, thread: Thread, turn: ChatMessage) -> None:
        """A new turn: shown from here on, and stored at once, so that it is kept however the run ends."""
        thread.messages.append(turn)
        await self._store(thread, turn)

    async def _load(self, session_id: str, instructions: Sequence[ChatMessage]) -> Thread:
        history = await load_history(self, self.agent_id, session_id)
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

    async def _store(self, thread: Thread, turn: ChatMessage) -> None:
        run_id = _task_run_id.get() or ""
        # Counted by the run where there is one: its code may have other threads, or run the agent again.
        start = thread.stored if _task_turns.get() is None else None
        await persist_turns(self, self.agent_id, thread.session_id, run_id, [turn], start=start)
        thread.stored += 1


def _new_summary(view: Sequence[ChatMessage], messages: Transcript) -> ChatMessage | None:
    known = None if messages.summary is None else messages[messages.summary]
    for message in view:
        if message.role is not Role.SYSTEM:
            return None
        if message is not known and keeps_of(message) is not None:
            again = message == known and "response" not in message._wire  # a strategy's own, made each time
            return None if again else message
    return None


def _placed(summary: ChatMessage, messages: Transcript) -> ChatMessage:
    """With how many turns of the *whole* conversation it leaves: strategies before it may have left some out."""
    since = summary._wire.get("since")
    keeps = 0
    for message in reversed(messages):
        keeps += keeps_of(message) is None
        if message is since:
            return make_summary(summary_text(summary), keeps)
    return summary
