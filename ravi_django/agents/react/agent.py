"""ReActAgent: call the model and its tools in turns until there is an answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Never

from ravi_django.agents.budget import ExecutionTracker
from ravi_django.agents.current import _task_run_id, _task_shown, _task_threads, enter_agent, enter_message
from ravi_django.agents.memory.agent_context import ContextConfig, Thread, drop_turns
from ravi_django.agents.memory.transcript import STOPPED
from ravi_django.agents.messages import (
    Instructions,
    checked_model,
    deliver,
    instructions_text,
    names_of,
    system_messages,
    with_options,
)
from ravi_django.agents.middleware import Hooks, MiddlewarePipeline
from ravi_django.agents.react import ends
from ravi_django.agents.react.approval import ApprovalGate, ApprovalHandler
from ravi_django.agents.react.calls import LastTurn, Offer, Offers, Slot, call_all
from ravi_django.agents.react.result import Goal, ResultType, deliver_result, wanted_of
from ravi_django.agents.react.spec import spec_of_react
from ravi_django.agents.tools import client_tool
from ravi_django.agents.tools.delegate import HandoffTool
from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import (
    AgentContextProtocol,
    AgentId,
    ExecutionBudget,
    FinishAgentResult,
    HistoryRetention,
    HookEvent,
    Risk,
    Tool,
    ToolRegistry,
    TopicId,
)
from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.checks import check_whole, did_you_mean
from ravi_django.kernel.content import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from ravi_django.kernel.contracts import RunContext
from ravi_django.kernel.errors import (
    BudgetExhaustedError,
    CancellationError,
    LeaseLostError,
    ModelError,
    ResultInvalidError,
)
from ravi_django.kernel.llm import ChatModel, GenerationOptions, ModelResponse
from ravi_django.kernel.messages import Message, ToolExecutionResult
from ravi_django.kernel.supervision import DEADLINE


@dataclass(slots=True)
class _Run:
    """The state of one run; the agent itself has none.

    `finishes` has, by the call's index, the handoffs that a turn's calls ask for. When all calls have results, LastTurn
    makes the first handoff that is allowed.
    """

    ctx: RunContext
    tracker: ExecutionTracker | None
    offers: Offers
    offer: Offer  # the options of its model calls
    system: list[ChatMessage]  # the instructions, if any
    tools: ToolRegistry  # the agent's, and those of the run's client
    threads: dict[str, Thread] = field(default_factory=dict)
    message: Message | None = None  # the one being answered
    finishes: dict[int, FinishAgentResult] = field(default_factory=dict)  # of the current turn
    is_schema_refused: bool = False


class ReActAgent:
    """The default agent: a chatbot or task-doer that uses tools. Serves concurrent runs.

    model: a ChatModel, or a model's name as "gpt-4o-mini", which `register` builds with LLMFactory.
    tools: a ToolRegistry or a list of tools and functions. Their schemas are read once, here.
    context: the memory (ContextConfig); None: once the agent is registered, the site's database. Of an object with
    `get_prompt_window` (AgentContextProtocol) each run reads the window once, and adds its own turns.
    retention: of that memory: "permanent" keeps the turns with the conversation, "run" drops them when the run ends,
    "none" stores nothing. A `context` has its own.
    max_iterations: model calls for one message; one more raises BudgetExhaustedError.
    approval_handler, approval_required_risk, approvers: who decides on tools of at least that risk (default high), see
    ApprovalGate: a handler in this process, or people: an address or several (see Addressees), or a mapping of such by
    tool name, risk or "*". Without either the calls are denied.
    budget: an ExecutionBudget (or a tracker of one) for each run of this agent.
    initial_tool_choice: "required" or a tool's name, only for the first model call of a message.
    base_options: GenerationOptions, or a dict of them, for every call; its `tools`, if any, replace all tools.
    output_topic: where answers go if nobody asked for a reply.
    max_parallel_tools: how many tool calls of one turn run at once; calls of other agents only wait and do not count.
    system_instructions: a text, or a function (ctx) -> str, sync or async, that is called once a run.
    result_model: the type of the final answer (see ResultType); the run's output is then its JSON. An invalid answer
    goes back to the model with the error, `result_retries` times; then ResultInvalidError ends the run. A request may
    ask for another type, see `submit`.
    middleware, hooks: see AgentMiddleware, ChatMiddleware, FunctionMiddleware and Hooks.
    client_tools: the model is offered the tools of the run's client. With "high" the owner approves each call first.
    public_signals: names of signals that the owner of a run may send over REST, in addition to those of the class.
    """

    public_signals: frozenset[str] = frozenset()

    def __init__(
        self,
        key: str,
        *,
        model: ChatModel | str,
        tools: ToolRegistry | Iterable[Any] | None = None,
        context: ContextConfig | AgentContextProtocol | None = None,
        retention: HistoryRetention | str | None = None,
        system_instructions: Instructions = "",
        max_iterations: int = 10,
        approval_handler: ApprovalHandler | None = None,
        approval_required_risk: Risk | str | None = None,
        approvers: Any = None,
        budget: ExecutionBudget | ExecutionTracker | None = None,
        initial_tool_choice: str | None = None,
        base_options: GenerationOptions | dict[str, Any] | None = None,
        output_topic: TopicId | None = None,
        name: str | None = None,
        id: AgentId | str | None = None,
        max_parallel_tools: int = 8,
        result_model: Any = None,
        result_retries: int = 3,
        middleware: Iterable[Any] | None = None,
        hooks: Any = None,
        public_signals: Iterable[str] | None = None,
        client_tools: bool | str = False,
        **unknown: Never,
    ) -> None:
        if unknown:
            near = did_you_mean(next(iter(unknown)), [*inspect.signature(ReActAgent).parameters], 0.4)
            raise TypeError(f"ReActAgent has no option {next(iter(unknown))!r}{near}")
        self.id = AgentId("react", key) if id is None else AgentId.parse(str(id))
        self.name = name or self.id.key
        self.model = checked_model(model)
        self.tools = Toolbox.of(tools)
        self.system_instructions = system_instructions
        self.max_iterations = check_whole("max_iterations", max_iterations, 1)
        self.max_parallel_tools = check_whole("max_parallel_tools", max_parallel_tools, 1)
        self.approval = ApprovalGate(approval_handler, approval_required_risk, approvers)
        self.approval.check(self.tools)
        self.budget = ExecutionTracker(budget) if isinstance(budget, ExecutionBudget) else budget
        self.initial_tool_choice = initial_tool_choice
        self.output_topic = output_topic
        self.middleware = MiddlewarePipeline.of(middleware)
        self.hooks = Hooks.of(hooks)
        self.public_signals = names_of(self, public_signals)
        self.client_tools = client_tool.checked_option(client_tools)
        self.result = ResultType.of(result_model)
        self.result_retries = check_whole("result_retries", result_retries, 0)
        options = GenerationOptions.of(base_options) or GenerationOptions()
        if options.cache_life is None and any(self.approval.may_wait(tool) for tool in self.tools.all()):
            options = with_options(options, cache_life="1h")  # people take longer than a cache lives
        self._offers = Offers.of(self.id, options, self.tools, initial_tool_choice, self.result)
        self._system = None if callable(system_instructions) else system_messages(system_instructions)
        memory = ContextConfig.stated(context, retention)
        self.context = memory.bind(self.id, instructions=self._system or (), model=model)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str | None:
        """Answer each message. Raises BudgetExhaustedError at a limit, and ResultInvalidError after too many invalid
        answers; the turns up to then are kept."""
        enter_agent(self)
        tools = getattr(ctx, "toolbox", self.tools) if self.client_tools else self.tools
        wanted, offers = wanted_of(ctx, self.result), self._offers
        if wanted is not self.result or tools is not self.tools:
            offers = offers.of_run(self.id, tools, self.initial_tool_choice, wanted)
        offer, system = await offers.choose(self.model), await self._instructions(ctx)
        threads = _task_threads.get()
        own_run, own_threads = _task_run_id.set(ctx.run_id), _task_threads.set({} if threads is None else threads)
        run = _Run(ctx, self._fresh_tracker(ctx), offers, offer, system, tools)
        try:
            answer = await self._handle_all(run, inbox)
        except LeaseLostError:  # the next worker needs the turns
            raise
        except Exception:  # the run ends; a suspension is no Exception and keeps the turns
            await self._drop_turns(run)
            raise
        else:
            await self._drop_turns(run)
            return answer
        finally:
            _task_run_id.reset(own_run)
            _task_threads.reset(own_threads)

    async def _handle_all(self, run: _Run, inbox: list[Message]) -> str | None:
        answer: str | None = None
        for number, msg in enumerate(inbox, 1):
            run.ctx.check()
            await self._fire(run, HookEvent.FLOW_START, message=msg.id)
            try:
                answer = await self._handle_message(run, msg, "" if number == 1 else f"msg{number}.")
            except LeaseLostError:
                raise
            except Exception as error:
                await self._fire(run, HookEvent.FLOW_END, message=msg.id, error=type(error).__name__)
                raise
            await self._fire(run, HookEvent.FLOW_END, message=msg.id, error=None)
        return answer

    async def _handle_message(self, run: _Run, msg: Message, prefix: str) -> str:
        ctx, run.message = run.ctx, msg
        session_id = enter_message(ctx, msg)
        thread = run.threads.get(session_id)
        if thread is None:
            thread = run.threads[session_id] = await self.context.open(session_id, run.system)
        await self.context.take(thread, msg)
        wanted, tool_name = run.offers.result, run.offers.result_tool
        goal = None if wanted is None else Goal(wanted, tool_name, self.result_retries)
        await self._react_loop(run, thread, prefix, goal)
        if goal is not None and goal.result is not None:
            await deliver_result(ctx, msg, goal.result, output_topic=self.output_topic)
            return goal.result.text
        answer = ends.last_answer(thread.messages)
        await deliver(ctx, msg, {"text": answer}, sender=self.id, output_topic=self.output_topic)
        return answer

    async def _react_loop(self, run: _Run, thread: Thread, prefix: str, goal: Goal | None) -> None:
        ctx = run.ctx
        options = run.offer.first
        for turn in range(1, self.max_iterations + 1):
            ctx.check()
            if run.tracker is not None:
                run.tracker.check(ctx.now() if run.tracker.started_at else None)
            await self._fire(run, HookEvent.STEP_START, step=turn)
            scope = f"{prefix}turn{turn}"
            with ctx.scope(scope):
                response = await self._ask(run, thread, options)
            options = run.offer.later
            if ends.is_refusal(response) and goal is not None:
                raise ResultInvalidError(f"the model refused to give a {goal.name}: {response.text}")
            correction = None if goal is None or response.message.tool_calls else goal.read_text(response)
            if response.content:
                await self.context.add(thread, response.message, shared=None if correction is None else False)
            ended = await self._act(run, thread, response, scope, goal, correction)
            await self._fire(run, HookEvent.STEP_END, step=turn, tool_calls=len(response.message.tool_calls))
            if ended:
                return
            if turn < self.max_iterations:  # else another run answers it
                await self._hear(run, thread)
        raise BudgetExhaustedError(
            f"agent {self.id} reached the limit of {self.max_iterations} iterations without an answer; "
            "raise max_iterations or give it a smaller task"
        )

    async def _ask(self, run: _Run, thread: Thread, options: GenerationOptions) -> ModelResponse:
        """The model's answer. If it was cut off or is empty, one more request says so to the model, once. A paused
        answer is a separate turn, which the model continues."""
        hints: list[ChatMessage] = []
        pauses = 0
        while True:
            view = await self.context.view(thread, run.tracker)
            try:
                response = await self._answered(run, thread, [*view, *hints], options)
            except ModelError as error:
                if run.is_schema_refused or run.offers.result is None or not ends.refuses_schema(error):
                    raise
                is_first, run.is_schema_refused = options is run.offer.first, True
                run.offer = run.offers.without_schema(self.model)
                options = run.offer.first if is_first else run.offer.later
                continue
            if run.tracker is not None:
                run.tracker.consume(tokens=response.usage.total, turns=1, cost=response.cost)
            response = ends.without_refused(response)
            if ends.is_paused(response):
                pauses += 1
                if pauses > ends.PAUSES:
                    return response
                await self.context.add(thread, response.message, shared=False)
                continue
            hint = None if ends.is_refusal(response) else ends.hint_for(response, thread.messages)
            if hint is None:
                return response
            if hints:
                raise ends.error_of(response)
            hints.append(hint)

    async def _answered(
        self, run: _Run, thread: Thread, view: Sequence[ChatMessage], options: GenerationOptions
    ) -> ModelResponse:
        """Store the text that was shown if a person stops the run in mid-answer. Not at a deadline: a retry of that run
        asks the model again."""
        streamed: list[str] = []
        outer = _task_shown.set(streamed)
        try:
            return await run.ctx.llm(view, options=options)
        except (asyncio.CancelledError, CancellationError):
            text = "".join(streamed)
            if text.strip() and run.ctx.meta.cancellation.reason not in (None, DEADLINE):
                turn = ChatMessage(role=Role.ASSISTANT, name=STOPPED, content=[TextBlock(text=text)])
                await self.context.add(thread, turn)
            raise
        finally:
            _task_shown.reset(outer)

    async def _hear(self, run: _Run, thread: Thread) -> None:
        """Messages that have come meanwhile steer the rest of the work."""
        hear = getattr(run.ctx, "hear", None)
        for msg in () if hear is None else await hear():
            await self.context.take(thread, msg)

    async def _act(
        self,
        run: _Run,
        thread: Thread,
        response: ModelResponse,
        scope: str,
        goal: Goal | None,
        correction: ChatMessage | None,
    ) -> bool:
        """Make the calls of a turn. Returns whether it was the message's last turn."""
        calls = response.message.tool_calls
        if not calls:
            if goal is None or correction is None:
                return True
            goal.count()
            await self.context.add(thread, correction)
            return False
        run.finishes.clear()
        tools = [numbered for numbered in enumerate(calls) if goal is None or not goal.takes(numbered[1])]
        call_one = partial(self._call_tool, run, scope)
        results = await call_all(tools, call_one, at_once=self.max_parallel_tools) if tools else []
        if run.finishes:
            assert run.message is not None
            last = LastTurn(calls, tools, results, run.finishes)
            results = await last.hand_over(run.ctx, run.message, scope, partial(self._leave, run, thread))
        content = list(results) if goal is None else goal.answer_calls(calls, results)
        await self.context.add(thread, ChatMessage(role=Role.TOOL, content=content))
        if goal is None:
            return False
        goal.count()
        if goal.result is not None:
            await self.context.add(thread, goal.assistant_turn())
        return goal.result is not None

    async def _leave(self, run: _Run, thread: Thread, turn: ChatMessage) -> None:
        """The last turn before another agent takes over."""
        await self.context.add(thread, turn)
        await self._fire(run, HookEvent.FLOW_END, message=run.message and run.message.id, error=None)

    def _only_waits(self, ctx: RunContext, tool: Tool | None) -> bool:
        """Whether the call needs no slot: another agent does the work, or its result is in the journal. A recorded call
        must not wait for a slot, or a replay could wait forever: the slot's holder may wait for this record."""
        is_recorded = getattr(ctx, "is_recorded", None)
        return isinstance(tool, HandoffTool | client_tool.ClientTool) or (is_recorded is not None and is_recorded())

    async def _call_tool(self, run: _Run, scope: str, index: int, call: ToolUseBlock, slot: Slot) -> ToolResultBlock:
        """One call's result; `index` is its place in the assistant's message."""
        (ctx := run.ctx).check()
        with ctx.scope(f"{scope}.call{index}", call_id=call.call_id):
            tool = run.tools.get(call.tool_name)
            note: list[ContentBlock] = []
            if tool is not None and self.approval.covers(tool, call.arguments):
                settled = await self.approval.settle(ctx, tool, call)
                if settled.refusal is not None:
                    refusal = TextBlock(text=settled.refusal)
                    hidden = True if call.hidden else None
                    return ToolResultBlock(call_id=call.call_id, content=[refusal], is_error=True, hidden=hidden)
                call, note = settled.call, [TextBlock(text=settled.note)] if settled.note else []
            async with slot(not self._only_waits(ctx, tool)):
                result = await self._perform(ctx, call)
        if result.finish is not None:
            run.finishes[index] = result.finish
        return ToolResultBlock(
            call_id=call.call_id,
            content=[*note, *result.content],
            is_error=result.status != "ok",
            hidden=True if result.hidden or call.hidden else None,
        )

    async def _perform(self, ctx: RunContext, call: ToolUseBlock) -> ToolExecutionResult:
        return await ctx.tool(call.tool_name, **call.arguments)

    def _fresh_tracker(self, ctx: RunContext) -> ExecutionTracker | None:
        return None if self.budget is None else self.budget.fresh(ctx.now() if self.budget.budget.deadline_s else None)

    async def _drop_turns(self, run: _Run) -> None:
        for session_id in run.threads:
            await drop_turns(self.context, self.id, session_id, run.ctx.run_id)

    async def _instructions(self, ctx: RunContext) -> list[ChatMessage]:
        if self._system is not None:
            return self._system
        return system_messages(await instructions_text(ctx, self.system_instructions, self.id))

    async def _fire(self, run: _Run, event: HookEvent, **data: Any) -> None:
        hook = getattr(run.ctx, "hook", None) if self.hooks else None
        if hook is not None:
            await hook(event, **data)

    def spec(self) -> dict[str, Any]:
        """What the runs of this agent depend on, as JSON: model, instructions, tools and options."""
        return spec_of_react(self, self._offers.plain)
