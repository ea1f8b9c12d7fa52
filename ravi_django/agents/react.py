"""ReActAgent: reason, act by calling tools, read their results, again, until there is an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ravi_django.agents._loop import deliver, drop_turns, final_text, load_history, message_to_chat, persist_turns
from ravi_django.agents._task import (
    _task_agent_id,
    _task_agent_label,
    _task_parent_agent_id,
    _task_run_id,
    _task_thread_id,
)
from ravi_django.agents.approval import ApprovalGate, ApprovalHandler
from ravi_django.agents.budget import ExecutionTracker
from ravi_django.agents.context import ContextConfig
from ravi_django.agents.toolbox import Toolbox
from ravi_django.agents.transcript import Transcript
from ravi_django.kernel import (
    AgentId,
    BudgetExhaustedError,
    ChatMessage,
    ChatModel,
    ContentBlock,
    ExecutionBudget,
    GenerationOptions,
    InvalidInputError,
    LeaseLostError,
    Message,
    Risk,
    Role,
    RunContext,
    TextBlock,
    ToolRegistry,
    ToolResultBlock,
    ToolUseBlock,
    TopicId,
)
from ravi_django.kernel.tools import specs_of


@dataclass(slots=True)
class _Thread:
    """One session in one run."""

    session_id: str
    messages: Transcript  # system message, history, and what this run has added
    stored: int = 0  # how many turns of this run were handed to the history


@dataclass(slots=True)
class _Run:
    """The state of one run; the agent itself has none."""

    ctx: RunContext
    tracker: ExecutionTracker | None
    threads: dict[str, _Thread] = field(default_factory=dict)


class ReActAgent:
    """The default agent: any chatbot or task-doer that uses tools. Serves concurrent runs.

    tools: a ToolRegistry or a list of tools and functions; what the model sees of them is read once, here.
    context: the memory (ContextConfig); without one nothing is kept.
    max_iterations: model calls for one message; one more raises BudgetExhaustedError.
    approval_handler, approval_required_risk: who decides on tools of at least that risk (default high), see
    ApprovalGate; without a handler they are denied.
    budget: an ExecutionBudget (or a tracker of one) for each run of this agent.
    initial_tool_choice: "required" or a tool's name, for the first model call of a message alone.
    base_options: GenerationOptions for every call; its `tools`, when it has any, are shown instead of all.
    output_topic: where answers go when nobody asked for a reply.
    max_parallel_tools: how many tool calls of one turn run at once.
    """

    def __init__(
        self,
        key: str,
        *,
        model: ChatModel,
        tools: ToolRegistry | Iterable[Any] | None = None,
        context: ContextConfig | None = None,
        system_instructions: str = "",
        max_iterations: int = 10,
        approval_handler: ApprovalHandler | None = None,
        approval_required_risk: Risk | str | None = None,
        budget: ExecutionBudget | ExecutionTracker | None = None,
        initial_tool_choice: str | None = None,
        base_options: GenerationOptions | None = None,
        output_topic: TopicId | None = None,
        name: str | None = None,
        id: AgentId | str | None = None,
        max_parallel_tools: int = 8,
    ) -> None:
        if not callable(getattr(model, "stream", None)):
            raise TypeError(f"model must be a ChatModel, not {model!r}; build one, e.g. LLMFactory(name).build()")
        self.id = AgentId("react", key) if id is None else AgentId.parse(str(id))
        self.name = name or self.id.key
        self.model = model
        self.tools = Toolbox.of(tools)
        self.context = context or ContextConfig()
        self.system_instructions = system_instructions
        self.max_iterations = _positive("max_iterations", max_iterations)
        self.max_parallel_tools = _positive("max_parallel_tools", max_parallel_tools)
        self.approval = ApprovalGate(approval_handler, approval_required_risk)
        self.budget = ExecutionTracker(budget) if isinstance(budget, ExecutionBudget) else budget
        self.initial_tool_choice = initial_tool_choice
        self.output_topic = output_topic
        self._system = [ChatMessage.of(Role.SYSTEM, system_instructions)] if system_instructions else []
        self._options = self._build_options(base_options or GenerationOptions())
        self._first_options = self._build_first_options()

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str | None:
        """Answer each message. Raises BudgetExhaustedError at a cap; the turns up to then are kept."""
        _task_agent_id.set(str(self.id))
        _task_agent_label.set(self.name)
        own_run = _task_run_id.set(ctx.run_id)
        run = _Run(ctx, self._fresh_tracker(ctx))
        try:
            answer = await self._handle_all(run, inbox)
        except LeaseLostError:  # the turns are the next worker's now
            raise
        except Exception:  # the run ends; a suspended one does not, its turns stay
            await self._drop_turns(run)
            raise
        else:
            await self._drop_turns(run)
            return answer
        finally:
            _task_run_id.reset(own_run)

    async def _handle_all(self, run: _Run, inbox: list[Message]) -> str | None:
        answer: str | None = None
        for number, msg in enumerate(inbox, 1):
            run.ctx.check()
            answer = await self._handle_message(run, msg, "" if number == 1 else f"msg{number}.")
        return answer

    async def _handle_message(self, run: _Run, msg: Message, place: str) -> str:
        ctx = run.ctx
        session_id = ctx.session_id or msg.correlation_id or ctx.run_id
        _task_thread_id.set(session_id)
        _task_parent_agent_id.set(msg.metadata.get("parent_agent_id") or None)
        thread = run.threads.get(session_id)
        if thread is None:
            history = await load_history(self.context, self.id, session_id)
            thread = run.threads[session_id] = _Thread(session_id, Transcript(self._system + history))
        await self._add(run, thread, message_to_chat(msg))
        await self._react_loop(run, thread, place)
        answer = final_text(thread.messages)
        await deliver(ctx, msg, {"text": answer}, sender=self.id, output_topic=self.output_topic)
        return answer

    async def _react_loop(self, run: _Run, thread: _Thread, place: str) -> None:
        ctx = run.ctx
        options = self._first_options
        for turn in range(1, self.max_iterations + 1):
            ctx.check()
            self._check_budget(run)
            scope = f"{place}turn{turn}"
            view = await self.context.pipeline.compact(thread.messages)
            with ctx.scope(scope):
                response = await ctx.llm(view, options=options)
            options = self._options
            await self._add(run, thread, response.message)
            if run.tracker is not None:
                run.tracker.consume(tokens=response.usage.total, turns=1, cost=response.cost)
            calls = response.message.tool_calls
            if not calls:
                return
            results = await self._call_tools(ctx, calls, scope)
            await self._add(run, thread, ChatMessage(role=Role.TOOL, content=results))
        raise BudgetExhaustedError(
            f"agent {self.id} reached max iterations limit ({self.max_iterations}) without an answer; "
            "raise max_iterations or give it a smaller task"
        )

    async def _add(self, run: _Run, thread: _Thread, turn: ChatMessage) -> None:
        """A new turn goes to the history at once: it is kept however the run ends."""
        thread.messages.append(turn)
        await persist_turns(self.context, self.id, thread.session_id, run.ctx.run_id, [turn], start=thread.stored)
        thread.stored += 1

    async def _call_tools(self, ctx: RunContext, calls: list[ToolUseBlock], scope: str) -> list[ContentBlock]:
        """The results in the order of the calls, whichever finishes first."""
        if len(calls) == 1:
            return [await self._call_tool(ctx, calls[0], f"{scope}.call0")]
        slots = asyncio.Semaphore(self.max_parallel_tools)
        ended: list[BaseException] = []

        async def bounded(index: int, call: ToolUseBlock) -> ToolResultBlock:
            async with slots:
                if ended:  # the run is unwinding: start nothing more
                    raise ended[0]
                try:
                    return await self._call_tool(ctx, call, f"{scope}.call{index}")
                except BaseException as error:
                    ended.append(error)
                    raise

        # Those that have started end, and are recorded, before the failure of one is passed on: an effect that is
        # abandoned half-way would be an uncertain one.
        outcomes = await asyncio.gather(*(bounded(i, call) for i, call in enumerate(calls)), return_exceptions=True)
        return _results_or_raise(outcomes)

    async def _call_tool(self, ctx: RunContext, call: ToolUseBlock, scope: str) -> ToolResultBlock:
        ctx.check()
        with ctx.scope(scope, call_id=call.call_id):
            tool = self.tools.get(call.tool_name)
            if tool is not None and self.approval.covers(tool):
                refusal = await self.approval.refusal(ctx, tool, call)
                if refusal is not None:
                    return ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=refusal)], is_error=True)
            result = await ctx.tool(call.tool_name, **call.arguments)
        return ToolResultBlock(call_id=call.call_id, content=result.content, is_error=result.status != "ok")

    def _fresh_tracker(self, ctx: RunContext) -> ExecutionTracker | None:
        if self.budget is None:
            return None
        return self.budget.fresh(ctx.now() if self.budget.budget.deadline_s else None)

    def _check_budget(self, run: _Run) -> None:
        if run.tracker is not None:
            run.tracker.check(run.ctx.now() if run.tracker.started_at else None)

    async def _drop_turns(self, run: _Run) -> None:
        for session_id in run.threads:
            await drop_turns(self.context, self.id, session_id, run.ctx.run_id)

    def _build_options(self, base: GenerationOptions, **changes: Any) -> GenerationOptions:
        # Built anew, not copied: a copy would carry the digests that were cached for the original.
        values = {name: getattr(base, name) for name in GenerationOptions.model_fields}
        return GenerationOptions(**{**values, "tools": specs_of(base.tools or self.tools.all()), **changes})

    def _build_first_options(self) -> GenerationOptions:
        choice = self.initial_tool_choice
        if choice is None:
            return self._options
        names = [spec.name for spec in self._options.tools]
        if choice not in ("auto", "none", *(names and ["required"]), *names):
            raise InvalidInputError(
                f"initial_tool_choice {choice!r} is no tool of {self.id}; it has {', '.join(names) or 'none'}",
                field="initial_tool_choice",
            )
        return self._build_options(self._options, tool_choice=choice)

    def spec(self) -> dict[str, Any]:
        """What this agent is, as JSON: enough to show it and to see that it has changed."""
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "model": getattr(self.model, "name", type(self.model).__name__),
            "system_instructions": self.system_instructions,
            "tools": [{**tool.spec.model_dump(), **_promises(tool)} for tool in self.tools],
            "options": self._options.model_dump(
                mode="json", exclude={"tools"}, exclude_none=True, exclude_defaults=True
            ),
            "initial_tool_choice": self.initial_tool_choice,
            "max_iterations": self.max_iterations,
            "max_parallel_tools": self.max_parallel_tools,
            "approval_required_risk": self.approval.required.value,
            "budget": None if self.budget is None else self.budget.budget.model_dump(mode="json", exclude_none=True),
            "output_topic": None if self.output_topic is None else str(self.output_topic),
            "retention": self.context.retention.value,
        }


def _results_or_raise(outcomes: list[ToolResultBlock | BaseException]) -> list[ContentBlock]:
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:  # a suspension or a cancelled task is the runtime's own doing and goes before any error
        raise min(failures, key=lambda failure: isinstance(failure, Exception))
    return [outcome for outcome in outcomes if isinstance(outcome, ToolResultBlock)]


def _promises(tool: Any) -> dict[str, Any]:
    return {
        "risk": Risk(tool.risk).value,
        "effect": tool.promised_effect.value,
        "timeout": tool.timeout,
        "permission": tool.permission,
    }


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInputError(f"{name} is a whole number from 1, not {value!r}", field=name)
    return value
