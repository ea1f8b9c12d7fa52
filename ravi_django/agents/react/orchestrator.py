"""OrchestratorAgent: breaks a job up, hands its parts to sub-agents, and puts together what they answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ravi_django.agents.react.agent import ReActAgent
from ravi_django.agents.tools.delegate import INHERITED, DelegateTool, address_of, delegate, handoff_name
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import (
    Agent,
    AgentId,
    ChatModel,
    FinishAgentResult,
    GenerationOptions,
    InvalidInputError,
    Priority,
    RunContext,
    SpawnBudget,
    TextBlock,
    ToolArgumentsError,
    ToolExecutionResult,
    ToolRegistry,
    ToolUseBlock,
)
from ravi_django.kernel.checks import check_seconds
from ravi_django.kernel.tools import MAX_ARGUMENTS_DEPTH, is_too_deep, specs_of

_MOST_ANSWER = 1_000_000  # characters of a sub-agent's answer that the model is shown


@dataclass(frozen=True)
class SubAgentConfig:
    """One of an orchestrator's sub-agents.

    agent: an agent object (`register` of the orchestrator registers it too), or the address of one, "type/key".
    description: for the model, what to hand to it.
    ask_timeout: seconds to wait for its answer, not counting what people take to answer its requests.
    priority: of its runs; in a full tree HIGH and CRITICAL pause a strictly lower one.
    handoff: it takes over for good, and answers the orchestrator's caller in its place.
    """

    agent: Agent | AgentId | str
    description: str = ""
    ask_timeout: float = 120.0
    priority: Priority = Priority.NORMAL
    handoff: bool = False

    def __post_init__(self) -> None:
        check_seconds("ask_timeout", self.ask_timeout)
        try:
            Priority(self.priority)
        except ValueError:
            raise InvalidInputError(f"priority is a Priority, not {self.priority!r}", field="priority") from None
        _ = self.address

    @property
    def address(self) -> AgentId:
        return address_of(self.agent)


class OrchestratorAgent(ReActAgent):
    """A ReActAgent whose model also has a tool `handoff_<key>(task)` for each of its sub-agents.

    Such a call starts the sub-agent as a child run, in a session of its own, and waits for its reply, which is the
    call's result. A sub-agent that fails, is cancelled, has no room in the tree or does not answer in time is an error
    result in words: the model chooses what to do. The calls of one turn run in parallel, however many they are, beside
    calls of real tools. What people decide on tools (`approval_required_risk`) goes for these too: their risk is safe.
    Function middlewares wrap tools alone.

    sub_agents: SubAgentConfigs.
    spawn_budget: how many runs of the tree may live at once for another to be started, and whether HIGH and CRITICAL
    ones may pause others: for the whole tree where the orchestrator is its root, else for what it and those below it
    start. `RAVI["MAX_AGENTS"]` and the tree's own budget bound it too.
    Everything else is as ReActAgent takes it; `base_options.tools` adds to the sub-agents.

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
        base_options: GenerationOptions | None = None,
        id: AgentId | str | None = None,
        **options: Any,
    ) -> None:
        own = Toolbox.of(tools)
        self.sub_agents = tuple(sub_agents)
        self.spawn_budget = spawn_budget
        self._configs = _by_tool_name(self.sub_agents, own)
        delegates = [_tool_for(config) for config in self.sub_agents]
        if base_options is not None and base_options.tools:
            base_options = _with_tools(base_options, [*base_options.tools, *specs_of(delegates)])
        super().__init__(
            key,
            model=model,
            tools=Toolbox([*own, *delegates]),
            base_options=base_options,
            id=AgentId("orchestrator", key) if id is None else id,
            **options,
        )

    async def _perform(self, ctx: RunContext, call: ToolUseBlock) -> ToolExecutionResult:
        config = self._configs.get(call.tool_name)
        if config is None:
            return await super()._perform(ctx, call)
        try:
            task = self._task_of(call)
        except ToolArgumentsError as error:
            return ToolExecutionResult(content=[TextBlock(text=str(error))], is_error=True)
        if config.handoff:
            words = TextBlock(text=f"handed over to {config.address}")
            return ToolExecutionResult(content=[words], finish=FinishAgentResult(config.address, task))
        result = await delegate(
            ctx,
            config.address,
            task,
            config.ask_timeout,
            priority=Priority(config.priority),
            metadata={INHERITED: {}},
        )
        return _bounded(result)

    def _task_of(self, call: ToolUseBlock) -> str:
        tool = self.tools.get(call.tool_name)
        assert tool is not None
        if is_too_deep(call.arguments):
            raise ToolArgumentsError(f"the arguments are nested more than {MAX_ARGUMENTS_DEPTH} levels deep")
        return str(tool.validate(call.arguments)["task"])

    def spec(self) -> dict[str, Any]:
        return {
            **super().spec(),
            "sub_agents": [_described(config) for config in self.sub_agents],
            **({} if self.spawn_budget is None else {"spawn_budget": self.spawn_budget.model_dump(mode="json")}),
        }


def _by_tool_name(sub_agents: Iterable[SubAgentConfig], tools: ToolRegistry) -> dict[str, SubAgentConfig]:
    found: dict[str, SubAgentConfig] = {}
    for config in sub_agents:
        if not isinstance(config, SubAgentConfig):
            raise InvalidInputError(f"sub_agents has {config!r}; write SubAgentConfig({config!r})", field="sub_agents")
        name = handoff_name(config.address)
        if (other := found.get(name)) is not None:
            raise InvalidInputError(
                f"the sub-agents {other.address} and {config.address} would both be the tool {name}; "
                "give one of them another key",
                field="sub_agents",
            )
        if tools.get(name) is not None:
            raise InvalidInputError(
                f"the tool {name} has the name of the sub-agent {config.address}'s; rename it", field="tools"
            )
        found[name] = config
    return found


def _tool_for(config: SubAgentConfig) -> DelegateTool:
    over = f"Hand over to the agent {config.address} for good: it goes on with the task and answers in your place."
    return DelegateTool(config.agent, config.description or (over if config.handoff else ""))


def _with_tools(options: GenerationOptions, tools: list[Any]) -> GenerationOptions:
    values = {name: getattr(options, name) for name in GenerationOptions.model_fields}
    return GenerationOptions(**{**values, "tools": tools})


def _bounded(result: ToolExecutionResult) -> ToolExecutionResult:
    """An answer is no tool's result, which the runtime would cut; the child's own row has all of it."""
    text = result.text
    if len(text) <= _MOST_ANSWER:
        return result
    shown = TextBlock(text=f"{text[:_MOST_ANSWER]}\n… [{len(text) - _MOST_ANSWER} more characters are not shown]")
    return result.model_copy(update={"content": [shown]})


def _described(config: SubAgentConfig) -> dict[str, Any]:
    return {
        "agent": str(config.address),
        "tool": handoff_name(config.address),
        "description": config.description,
        "ask_timeout": float(config.ask_timeout),
        "priority": Priority(config.priority).name.lower(),
        "handoff": config.handoff,
    }
