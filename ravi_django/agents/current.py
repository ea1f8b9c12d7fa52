"""Whose task the code below runs for: read by tools that belong to a run, such as a task board.

Set inside the agent's own run: a value that is set where the run was submitted does not reach the worker.
"""

from contextvars import ContextVar
from typing import Any

_task_agent_id: ContextVar[str | None] = ContextVar("ravi_task_agent_id", default=None)
_task_agent_label: ContextVar[str | None] = ContextVar("ravi_task_agent_label", default=None)
_task_thread_id: ContextVar[str | None] = ContextVar("ravi_task_thread_id", default=None)  # the session
_task_parent_agent_id: ContextVar[str | None] = ContextVar("ravi_task_parent_agent_id", default=None)
_task_run_id: ContextVar[str | None] = ContextVar("ravi_task_run_id", default=None)
# How many turns this execution of the run's code has handed to the history; a replay counts anew from 0.
_task_turns: ContextVar[list[int] | None] = ContextVar("ravi_task_turns", default=None)
# The RunContext of the run: what a strategy or a middleware makes its journaled calls through.
_task_ctx: ContextVar[Any] = ContextVar("ravi_task_ctx", default=None)
# The model of the agent whose window is built: what tokens are counted by, also outside of runs.
_task_model: ContextVar[Any] = ContextVar("ravi_task_model", default=None)
# Whether a strategy may call a model: only where its summary is kept.
_task_may_summarize: ContextVar[bool] = ContextVar("ravi_task_may_summarize", default=True)
# The threads that the agents of this run have open, by agent and session.
_task_threads: ContextVar[dict[tuple[str, str], Any] | None] = ContextVar("ravi_task_threads", default=None)
