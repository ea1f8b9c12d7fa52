"""OrchestratorAgent: splits a task, delegates the parts to sub-agents and combines their answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ravi_django.agents.messages import with_options
from ravi_django.agents.react.agent import ReActAgent
from ravi_django.agents.react.approval import misfit_of
from ravi_django.agents.tools.delegate import (
    CONVERSATION,
    INHERITED,
    DelegateTool,
    address_of,
    check_memory,
    delegate,
    handoff_name,
)
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import AgentId, FinishAgentResult, InvalidInputError, Priority, SpawnBudget, ToolExecutionResult
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.content import TextBlock, ToolUseBlock
from ravi_django.kernel.contracts import Agent, RunContext
from ravi_django.kernel.llm import ChatModel, GenerationOptions
from ravi_django.kernel.tools import ToolRegistry, specs_of

_MOST_ANSWER = 1_000_000  # characters of a sub-agent's answer that the model gets


@dataclass(frozen=True)
class SubAgentConfig:
    """One of an orchestrator's sub-agents.

    agent: an agent object, which `register` of the orchestrator registers too, or an address "type/key".
    description: tells the model which tasks to delegate to it.
    ask_timeout: seconds or a timedelta to wait for its answer, without the time in which people answer its requests.
    priority: of its runs; in a full tree HIGH and CRITICAL pause a strictly lower one.
    handoff: it takes over permanently and answers the orchestrator's caller.
    memory: "conversation": it remembers its earlier tasks of this conversation; "none": it does not.
    context: with `handoff`, whether it reads what the session's person and other agents have said.
    """

    agent: Agent | AgentId | str
    description: str = ""
    ask_timeout: float | timedelta = 120.0
    priority: Priority = Priority.NORMAL
    handoff: bool = False
    memory: str = CONVERSATION
    context: bool = True

    def __post_init__(self) -> None:
        _ = self.ask_s
        try:
            Priority(self.priority)
        except ValueError:
            raise InvalidInputError(f"priority must be a Priority, not {self.priority!r}", field="priority") from None
        _ = self.address
        check_memory(self.memory)
        if not (self.context or self.handoff):
            raise InvalidInputError("context=False needs handoff=True: a task shares no conversation", field="context")

    @property
    def ask_s(self) -> float:
        """`ask_timeout` in seconds."""
        return check_seconds("ask_timeout", self.ask_timeout)

    @property
    def address(self) -> AgentId:
        """The address of the sub-agent."""
        return address_of(self.agent)


class OrchestratorAgent(ReActAgent):
    """A ReActAgent whose model also has a tool `handoff_<key>(task)` for each of its sub-agents.

    Such a call starts the sub-agent as a child run in its own session and waits for its reply, the call's result. If
    the sub-agent fails, is cancelled, has no room in the tree or does not answer in time, the model gets an error
    result. The calls of one turn run in parallel without limit. Approval rules (`approval_required_risk`) apply to
    them too; their risk is safe. Function middlewares wrap only real tools.

    sub_agents: SubAgentConfigs.
    spawn_budget: how many runs of the tree may live at once, and whether HIGH and CRITICAL ones may pause others. It
    applies to the whole tree if the orchestrator is its root, else to the runs that it and its descendants start.
    `RAVI["MAX_AGENTS"]` and the tree's own budget apply too.
    Further keywords: see ReActAgent; `base_options.tools` are offered in addition to the sub-agents.

    Raises InvalidInputError when two sub-agents, or one and a tool, would have the same tool name.
    """

    def __init__(
        self,
        key: str,
        *,
        model: ChatModel,
        sub_agents: Iterable[SubAgentConfig],
        spawn_budget: SpawnBudget | None = None,
        tools: ToolRegistry | Iterable[Any] | None = None,
        base_options: GenerationOptions | dict[str, Any] | None = None,
        id: AgentId | str | None = None,
        **options: Any,
    ) -> None:
        own_tools = Toolbox.of(tools)
        self.sub_agents = tuple(sub_agents)
        self.spawn_budget = spawn_budget
        self._configs = _by_tool_name(self.sub_agents, own_tools)
        delegates = [DelegateTool(config.agent, _description(config)) for config in self.sub_agents]
        base_options = GenerationOptions.of(base_options)
        if base_options is not None and base_options.tools:
            base_options = with_options(base_options, tools=[*base_options.tools, *specs_of(delegates)])
        super().__init__(
            key,
            model=model,
            tools=Toolbox([*own_tools, *delegates]),
            base_options=base_options,
            id=AgentId("orchestrator", key) if id is None else id,
            **options,
        )

    async def _perform(self, ctx: RunContext, call: ToolUseBlock) -> ToolExecutionResult:
        config = self._configs.get(call.tool_name)
        if config is None:
            return await super()._perform(ctx, call)
        tool = self.tools.get(call.tool_name)
        assert tool is not None
        if (misfit := misfit_of(tool, call.arguments)) is not None:
            return ToolExecutionResult(content=[TextBlock(text=misfit)], is_error=True)
        task = tool.validate(call.arguments)["task"]
        if config.handoff:
            block = TextBlock(text=f"handed over to {config.address}")
            return ToolExecutionResult(content=[block], finish=FinishAgentResult(config.address, task, config.context))
        priority, metadata = Priority(config.priority), {INHERITED: dict[str, Any]()}
        answer = await delegate(
            ctx, config.address, task, config.ask_s, priority=priority, metadata=metadata, memory=config.memory
        )
        return _bounded(answer)

    def spec(self) -> dict[str, Any]:
        return {
            **super().spec(),
            "sub_agents": [_config_json(config) for config in self.sub_agents],
            **({} if self.spawn_budget is None else {"spawn_budget": self.spawn_budget.model_dump(mode="json")}),
        }


def _by_tool_name(sub_agents: Iterable[SubAgentConfig], tools: ToolRegistry) -> dict[str, SubAgentConfig]:
    configs: dict[str, SubAgentConfig] = {}
    for config in sub_agents:
        if not isinstance(config, SubAgentConfig):
            raise InvalidInputError(f"sub_agents has {config!r}; pass SubAgentConfig({config!r})", field="sub_agents")
        name = handoff_name(config.address)
        if (other := configs.get(name)) is not None:
            raise InvalidInputError(
                f"the sub-agents {other.address} and {config.address} have the same tool name {name}; change the "
                "key of one of them",
                field="sub_agents",
            )
        if tools.get(name) is not None:
            raise InvalidInputError(
                f"the tool name {name} is taken by the sub-agent {config.address}; rename the tool", field="tools"
            )
        configs[name] = config
    return configs


def _description(config: SubAgentConfig) -> str:
    if config.description or not config.handoff:
        return config.description
    return f"Hand over to the agent {config.address} for good: it goes on with the task and answers in your place."


def _bounded(result: ToolExecutionResult) -> ToolExecutionResult:
    """The runtime cuts only tool results, so a long answer is cut here. The child's row keeps all of it."""
    text = result.text
    if len(text) <= _MOST_ANSWER:
        return result
    block = TextBlock(text=f"{text[:_MOST_ANSWER]}\n… [{len(text) - _MOST_ANSWER} more characters are not shown]")
    return result.model_copy(update={"content": [block]})


def _config_json(config: SubAgentConfig) -> dict[str, Any]:
    return {
        "agent": str(config.address),
        "tool": handoff_name(config.address),
        "description": config.description,
        "ask_timeout": config.ask_s,
        "priority": Priority(config.priority).name.lower(),
        "handoff": config.handoff,
        "memory": config.memory,
        "context": config.context,
    }
