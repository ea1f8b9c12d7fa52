"""Constructors: an agent from arguments, an agent from its spec, a conversation from stored steps. They do not register
the agent: the caller does."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ravi_django import wing
from ravi_django.agents.current import _task_run_id
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline, CompactionStrategy
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.windows import (
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    ToolResultCompaction,
)
from ravi_django.agents.memory.history import Address, HistoryProvider, InMemoryHistoryProvider
from ravi_django.agents.react.agent import ReActAgent
from ravi_django.agents.react.spec import DEFAULT_WINDOW
from ravi_django.agents.spec.spec import CLASSES, REACT, AgentSpec, ModelSettings, Window, validate_spec
from ravi_django.agents.spec.steps import rebuild_messages_from_steps
from ravi_django.agents.tools.delegate import AgentTool
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import AgentId, ChatModel, HistoryRetention, InvalidInputError, ToolRegistry, TopicId

if TYPE_CHECKING:
    from ravi_django.agents import InformationAgent, PersonalFeedAgent

__all__ = ["create_assistant_agent", "load_session_memory", "rebuild_agent", "rebuild_messages_from_steps"]

Steps = Iterable[Any] | None
_seeding: dict[
    tuple[int, str, str], Future[bool]
] = {}  # conversations that are being read; the result says whether it worked
_MADE = re.compile(r"<[\w.<>]+>\Z")  # how `spec()` names a function that computes the instructions
_KINDS = {name: kind for kind, name in CLASSES.items() if kind != REACT}  # by class name, as in `spec()`
_OF_THE_RUN = ("session_id", "run_id", "thread_id", "user_id", "tenant_id")


def create_assistant_agent(
    model_client: ChatModel,
    *,
    key: str = "assistant",
    tools: ToolRegistry | Iterable[Any] | None = None,
    system_instructions: str = "",
    memory: HistoryProvider | None = None,
    compaction: CompactionStrategy | None = None,
    **options: Any,
) -> ReActAgent:
    """A ready, unregistered ReActAgent `react/<key>`.

    memory: stores conversations; None: once the agent is registered, the site's database. compaction: one strategy or a
    pipeline; None is a sliding window of 100 messages. Further keywords: see ReActAgent.
    """
    retention = options.pop("retention", HistoryRetention.PERMANENT)
    return ReActAgent(
        key,
        model=model_client,
        tools=Toolbox.of(tools),
        context=ContextConfig.by_default(memory, compaction, retention),
        system_instructions=system_instructions,
        **options,
    )


def rebuild_agent(
    spec: AgentSpec | Mapping[str, Any],
    *,
    key: str | None = None,
    id: AgentId | str | None = None,
    tools: ToolRegistry | Iterable[Any] | None = None,
    build_model: Callable[..., ChatModel],
    memory: HistoryProvider | None = None,
    **options: Any,
) -> ReActAgent | InformationAgent | PersonalFeedAgent:
    """Make a ReActAgent, InformationAgent or PersonalFeedAgent from a spec: an AgentSpec, its JSON, the output of an
    agent's `spec()`, or the dict that was saved at submit time (fields of the run, such as `session_id`, are ignored).

    tools: has the tools of the spec's `tool_names`. build_model: makes the client; it gets the model's name, and
    `fallbacks=[…]` if the spec has fallbacks. memory: see `create_assistant_agent`. id: the address; or `key` for
    `react/<key>`; else the spec's own. Further keywords go to the agent's class and override the spec, for example
    `system_instructions` with the variables of the template filled in.

    Raises InvalidInputError whose `field` is the place in the spec.
    """
    saved = {} if isinstance(spec, AgentSpec) else _without_the_run(spec)
    address = id or (None if key else saved.pop("id", None) or saved.pop("agent_id", None))
    key = key or saved.pop("key", None)
    # `spec()` of an agent has these keywords of ReActAgent beyond the fields of AgentSpec.
    more: dict[str, Any] = {name: saved.pop(name) for name in ("max_parallel_tools", "result_retries") if name in saved}
    options = {**more, **options}
    agent_spec = spec if isinstance(spec, AgentSpec) else _as_spec(saved, "system_instructions" in options)
    known = Toolbox.of(tools)
    checked = validate_spec(agent_spec, known_tools=known.names())
    model = None
    if checked.model:
        model = build_model(checked.model, **({"fallbacks": checked.fallbacks} if checked.fallbacks else {}))
    if checked.kind != REACT:
        build: Callable[..., InformationAgent | PersonalFeedAgent] = wing.find("kinds", checked.kind)
        return build(checked, key or checked.kind, address, model, options)
    arguments: dict[str, Any] = {
        "model": model,
        "tools": _tools_of(checked, known),
        "context": ContextConfig.by_default(memory, _pipeline_of(checked.window), checked.retention),
        "system_instructions": checked.system_instructions,
        "max_iterations": checked.max_iterations,
        "approval_required_risk": checked.approval_required_risk,
        "approvers": checked.approvers,
        "client_tools": checked.client_tools,
        "budget": checked.budget,
        "initial_tool_choice": checked.initial_tool_choice,
        "base_options": checked.options.generation,
        "result_model": checked.result_schema,
        "name": checked.name or None,
        "output_topic": None if checked.output_topic is None else TopicId.parse(checked.output_topic),
        "id": address,
        "public_signals": checked.public_signals,
    }
    return ReActAgent(key or "assistant", **{**arguments, **options})


def _without_the_run(spec: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(spec, Mapping):
        raise InvalidInputError(f"a spec must be an AgentSpec or a dict, not {spec!r}", field="spec")
    return {name: value for name, value in spec.items() if name not in _OF_THE_RUN}


def _as_spec(saved: dict[str, Any], has_instructions: bool) -> dict[str, Any]:
    """The output of an agent's `spec()` as the fields of an AgentSpec."""
    for name in ("id", "agent_id", "key"):
        saved.pop(name, None)
    made_of = saved.pop("class", None)
    is_of_agent = made_of is not None
    if made_of in _KINDS:
        saved["kind"] = _KINDS[made_of]
        saved["system_instructions"] = saved.pop("instructions", "")
        saved = {name: value for name, value in saved.items() if value is not None}
    if is_of_agent and not has_instructions and _MADE.match(str(saved.get("system_instructions", ""))):
        raise InvalidInputError(
            f"system_instructions: {saved['system_instructions']} creates them; pass it as system_instructions=…",
            field="system_instructions",
        )
    if "tools" in saved:
        names = [tool["name"] if isinstance(tool, Mapping) else str(tool) for tool in saved.pop("tools") or ()]
        saved.setdefault("tool_names", names)
    if is_of_agent and isinstance(saved.get("options"), Mapping):
        saved["options"] = {
            name: value for name, value in saved["options"].items() if name in ModelSettings.model_fields
        }
    return saved


def _tools_of(spec: AgentSpec, known: ToolRegistry) -> Toolbox:
    toolbox = Toolbox(known.get(name) for name in spec.tool_names)
    defaults = {name: one.default for name, one in spec.variables.items() if one.default is not None}
    for sub_agent in spec.sub_agents:
        toolbox.add(AgentTool(sub_agent.agent, sub_agent.description, sub_agent.timeout, defaults))
    return toolbox


def _pipeline_of(window: Window | None) -> CompactionPipeline:
    parts: list[CompactionStrategy] = []
    if window is None or window.tokens is None:
        parts = [SlidingWindowCompaction((window and window.messages) or DEFAULT_WINDOW)]
    else:
        if window.messages is not None:
            parts = [SlidingWindowCompaction(window.messages)]
        shorter = (ToolResultCompaction(), SelectiveToolCallCompaction())
        parts.append(TokenBudgetComposed(*shorter, max_tokens=window.tokens))
    return CompactionPipeline(*parts)


async def load_session_memory(
    session_id: str,
    load_persisted_steps: Callable[[str], Steps | Awaitable[Steps]],
    memory: HistoryProvider | None = None,
    *,
    agent_id: Address = "react/assistant",
    user: Any = None,
    tenant: str = "",
) -> HistoryProvider:
    """A history with the session: `memory` (None: a new one in memory), filled from cold storage if it lacks the
    session.

    user: fills this user's conversation with the name `session_id`, which is made at first use; `submit` with the same
    user, tenant and `session` goes on with it. Without a user the turns are stored under the text itself.
    load_persisted_steps: `(session_id) -> step rows`, sync or async, for `rebuild_messages_from_steps`. A sync one runs
    in a thread, which also reads its result, so a QuerySet is fine. It is called only if the session is missing, once
    for all concurrent callers of this process. Of several processes only one stores the result if `memory` has `seed`.
    Its errors are raised, and nothing is stored then. Inside a run, call this before the agent runs.
    """
    provider = InMemoryHistoryProvider() if memory is None else memory
    load = partial(load_persisted_steps, session_id)
    if user is not None:
        submit = import_module("ravi_django.runs.submit")  # of a higher layer: imported on first use
        session_id = await submit.anamed(session_id, user, str(agent_id), tenant)
    key = (id(provider), str(agent_id), str(session_id))
    if await provider.count(agent_id, session_id):
        return provider
    while True:
        this_call: Future[bool] = Future()
        other = _seeding.setdefault(key, this_call)
        if other is not this_call:
            if await asyncio.shield(asyncio.wrap_future(other)):
                break
            continue  # that caller failed or was cancelled: try it here
        read = False
        try:
            await _seed(provider, agent_id, session_id, load)
            read = True
        finally:
            del _seeding[key]
            this_call.set_result(read)
        break
    return provider


async def _seed(
    provider: HistoryProvider, agent_id: Address, session_id: str, load: Callable[[], Steps | Awaitable[Steps]]
) -> None:
    seed = getattr(provider, "seed", None)
    counts_itself = (
        seed is not None and _task_run_id.get() is not None
    )  # a run's count is journaled: always make exactly one
    if not counts_itself and await provider.count(agent_id, session_id):  # another caller has stored it meanwhile
        return
    if inspect.iscoroutinefunction(load):
        loaded: Any = await asyncio.to_thread(_list, await load())
    else:
        loaded = await asyncio.to_thread(lambda: _list(load()))
    steps = await asyncio.to_thread(_list, await loaded) if inspect.isawaitable(loaded) else loaded
    messages = rebuild_messages_from_steps(steps)
    if not messages:
        return
    if seed is None:
        await provider.append_many(agent_id, session_id, messages)
    else:
        await seed(agent_id, session_id, messages)


def _list(steps: Any) -> Any:
    """Read an iterable of steps: a QuerySet queries the database only now."""
    return steps if inspect.isawaitable(steps) else list(steps or ())
