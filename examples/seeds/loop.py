"""The loop of ReActAgent, written by hand: a class with an `id` and a `run` is an agent, without a base class.

    python -m examples.seeds.loop "What is 12 * 7?"

`ctx.llm` and `ctx.tool` are journaled: after a crash another worker runs the class from the top and gets the recorded
results. See `examples/running.py` for how to start it.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.running import play
from ravi_django.agents import Toolbox, deliver, final_text, load_history, message_to_chat, persist_turns
from ravi_django.agents.context import ContextConfig
from ravi_django.capabilities.tools import CalculatorTool
from ravi_django.kernel import (
    Agent,
    AgentId,
    BudgetExhaustedError,
    ChatMessage,
    ChatModel,
    GenerationOptions,
    Message,
    Role,
    RunContext,
    TextBlock,
    Tool,
    ToolResultBlock,
)


class LoopAgent:
    def __init__(
        self, key: str, *, model: ChatModel, tools: Sequence[Tool], context: ContextConfig, max_iterations: int = 10
    ) -> None:
        self.id = AgentId("loop", key)
        self.model = model  # of ctx.llm
        self.tools = Toolbox(tools)  # of ctx.tool
        self._context = context
        self._options = GenerationOptions(tools=self.tools)
        self._max_iterations = max_iterations

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        history_messages = await load_history(self._context, self.id, ctx.session_id)  # before this run
        for msg in inbox:
            ctx.check()
            history_messages = await self._handle_message(ctx, msg, history_messages)

    async def _handle_message(self, ctx: RunContext, msg: Message, history: list[ChatMessage]) -> list[ChatMessage]:
        messages = [*history, message_to_chat(msg)]
        await self._react_loop(ctx, messages)
        await persist_turns(self._context, self.id, ctx.session_id, ctx.run_id, messages[len(history) :])
        await deliver(ctx, msg, {"text": final_text(messages)}, sender=self.id)
        return messages

    async def _react_loop(self, ctx: RunContext, messages: list[ChatMessage]) -> None:
        for _ in range(self._max_iterations):
            ctx.check()
            llm_messages = await self._context.pipeline.compact(messages)  # a view: all messages are stored
            resp = await ctx.llm(llm_messages, options=self._options)
            messages.append(resp.message)
            tool_calls = resp.message.tool_calls
            if not tool_calls:
                return
            results = []
            for call in tool_calls:
                ctx.check()
                result = await ctx.tool(call.tool_name, **call.arguments)
                content = [TextBlock(text=result.text or "")]
                is_error = result.status != "ok"
                results.append(ToolResultBlock(call_id=call.call_id, content=content, is_error=is_error))
            messages.append(ChatMessage(role=Role.TOOL, content=results))
        raise BudgetExhaustedError(f"Agent reached max iterations limit ({self._max_iterations})")


def loop(model: ChatModel) -> list[Agent]:
    from ravi_django.agents.context import DjangoHistoryProvider  # a Django model is behind it: after django.setup()

    context = ContextConfig(DjangoHistoryProvider())
    return [LoopAgent("helper", model=model, tools=[CalculatorTool()], context=context)]


if __name__ == "__main__":
    import django

    django.setup()
    from ravi_django.integrations.llm import model_from_env

    play(loop(model_from_env()), "What is 12 * 7?")
