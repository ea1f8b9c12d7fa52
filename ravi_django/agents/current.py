"""Context of the running agent, for tools and strategies that depend on the run, such as a task board.

Agents set it inside their own run. A value that is set where the run was submitted does not reach the worker.
"""

from contextvars import ContextVar
from typing import Any

from ravi_django.kernel import RunMeta

_task_agent_id: ContextVar[str | None] = ContextVar("ravi_task_agent_id", default=None)
_task_agent_label: ContextVar[str | None] = ContextVar("ravi_task_agent_label", default=None)
_task_thread_id: ContextVar[str | None] = ContextVar("ravi_task_thread_id", default=None)  # the session
_task_parent_agent_id: ContextVar[str | None] = ContextVar("ravi_task_parent_agent_id", default=None)
_task_run_id: ContextVar[str | None] = ContextVar("ravi_task_run_id", default=None)
# How many turns this execution of the run's code has passed to the history. A replay starts again at 0.
_task_turns: ContextVar[list[int] | None] = ContextVar("ravi_task_turns", default=None)
# The RunContext, for the journaled calls of strategies and middlewares.
_task_ctx: ContextVar[Any] = ContextVar("ravi_task_ctx", default=None)
# The model of the agent whose window is built: its tokenizer counts, also outside of runs.
_task_model: ContextVar[Any] = ContextVar("ravi_task_model", default=None)
# Whether a strategy may call a model: only if its summary is stored.
_task_may_summarize: ContextVar[bool] = ContextVar("ravi_task_may_summarize", default=True)
# The open threads of this run's agents, by agent and session.
_task_threads: ContextVar[dict[tuple[str, str], Any] | None] = ContextVar("ravi_task_threads", default=None)

# The pieces of text that the present model call has shown: the agent keeps them if a person stops the run.
_task_shown: ContextVar[list[str] | None] = ContextVar("ravi_task_shown", default=None)


def current_meta() -> RunMeta | None:
    """The tenant, deadline, cancellation and place in the tree of the run around this code; None outside of runs. For
    code that gets no context, such as a HistoryProvider."""
    ctx = _task_ctx.get()
    return None if ctx is None else ctx.meta


def enter_agent(agent: Any) -> None:
    _task_agent_id.set(str(agent.id))
    _task_agent_label.set(agent.name)


def enter_message(ctx: Any, message: Any) -> str:
    """Set the session of the message and the agent that sent it. Returns the session's id."""
    session_id: str = ctx.session_id or message.correlation_id or ctx.run_id
    _task_thread_id.set(session_id)
    _task_parent_agent_id.set(message.metadata.get("parent_agent_id") or None)
    return session_id
