"""What the tests of ReActAgent share: tools, an agent with them, and what a fake context was asked for."""

from typing import Any

from ravi_django.agents import ContextConfig, InMemoryHistoryProvider, ReActAgent, tool
from ravi_django.kernel import AgentId, ChatMessage, ChatPayload, Message, RunContext, ToolResultBlock
from tests.support.fake_context import FakeContext
from tests.support.patience import seconds
from tests.support.world import task_agent_id, task_agent_label, task_parent_agent_id, task_thread_id

AGENT = AgentId("react", "helper")
BOUND_S = seconds(30)


class Model:
    """What an agent needs to be built; the fake context answers in its place."""

    name = "fake-model"

    def stream(self, messages: Any, options: Any, meta: Any) -> Any:
        raise AssertionError("agents call ctx.llm, never the model")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def echo(label: str) -> str:
    return label


@tool(risk="high")
def pay(amount: int) -> str:
    return f"paid {amount}"


@tool
async def whoami(ctx: RunContext) -> str:
    return f"{task_agent_id.get()} {task_agent_label.get()} {task_thread_id.get()} {task_parent_agent_id.get()}"


TOOLS = [add, echo, pay, whoami]


def agent(**options: Any) -> ReActAgent:
    return ReActAgent("helper", **{"model": Model(), "tools": TOOLS, **options})


def ask(text: str = "hello", **fields: Any) -> Message:
    return Message(target=AGENT, payload=ChatPayload(message=ChatMessage.of("user", text)), **fields)


async def run(made: ReActAgent, ctx: FakeContext, *inbox: Message) -> Any:
    return await made.run(ctx, list(inbox) or [ask()])  # type: ignore[arg-type]


def results_in(view: list[ChatMessage]) -> list[tuple[str, str, bool]]:
    return [
        (block.call_id, block.text, block.is_error)
        for message in view
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]


def remembering(**options: Any) -> tuple[ReActAgent, InMemoryHistoryProvider]:
    history = InMemoryHistoryProvider()
    return agent(context=ContextConfig(history), **options), history


async def stored(history: InMemoryHistoryProvider, session_id: str = "session-1") -> list[str]:
    return [f"{turn.role.value}:{turn.text}" for turn in await history.get(AGENT, session_id)]
