"""A RunContext written by hand: no journal, no database, everything that was done can be read back."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from ravi_django.agents.tools.toolbox import Toolbox
from ravi_django.kernel import (
    CancellationToken,
    ChatMessage,
    GenerationOptions,
    Message,
    ModelResponse,
    RunMeta,
    TextBlock,
    ToolArgumentsError,
    ToolExecutionResult,
    ToolUseBlock,
    TopicId,
    Usage,
)

_place: ContextVar[str] = ContextVar("fake_place", default="")

Say = str | ToolUseBlock | list[Any] | ModelResponse | BaseException | Callable[..., Any]


def call(tool_name: str, call_id: str = "c1", **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(tool_name=tool_name, arguments=arguments, call_id=call_id)


class FakeContext:
    """`script` is what the model says, call after call; after its end it repeats the last item."""

    def __init__(
        self,
        script: Sequence[Say] = ("done",),
        tools: Any = (),
        *,
        run_id: str = "run-1",
        session_id: str = "session-1",
        now: datetime | None = None,
        on_tool: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.script = list(script)
        self.tools = Toolbox.of(tools)
        self.run_id = run_id
        self.session_id = session_id
        self.meta = RunMeta(run_id=run_id, cancellation=CancellationToken())
        self.clock = now or datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
        self.on_tool = on_tool
        self.views: list[list[ChatMessage]] = []
        self.options: list[GenerationOptions | None] = []
        self.effects: list[tuple[str, str]] = []  # (scope, what), in the order they started
        self.call_ids: dict[str, str] = {}  # scope → call id
        self.replies: list[tuple[Message, Any]] = []
        self.emitted: list[tuple[TopicId, Any]] = []
        self.logged: list[tuple[str, Any]] = []

    async def llm(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None, model: Any = None
    ) -> ModelResponse:
        said: Any = self.script[min(len(self.views), len(self.script) - 1)]
        self.views.append(list(messages))
        self.options.append(options)
        self.effects.append((_place.get(), "llm"))
        if callable(said):
            said = said(messages)
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, ModelResponse):
            return said
        blocks = said if isinstance(said, list) else [said]
        content = [TextBlock(text=block) if isinstance(block, str) else block for block in blocks]
        return ModelResponse.of(content, usage=Usage(input_tokens=10, output_tokens=5), cost=0.01)

    async def tool(self, name: str, /, **arguments: Any) -> ToolExecutionResult:
        self.effects.append((_place.get(), name))
        if self.on_tool is not None:
            await self.on_tool(arguments.get("label", name))
        tool = self.tools.get(name)
        if tool is None:
            return _result(f"unknown tool {name!r}; there are {', '.join(self.tools.names())}", is_error=True)
        try:
            values = tool.validate(arguments)
            if tool.context_parameter:
                values[tool.context_parameter] = self
            value = tool.execute(**values)
            return _result(str(await value if inspect.isawaitable(value) else value))
        except ToolArgumentsError as error:
            return _result(str(error), is_error=True)

    async def reply(self, message: Message, result: Any) -> None:
        self.replies.append((message, result))

    async def emit(self, topic: TopicId, data: Any, *, id: str | None = None) -> None:
        self.emitted.append((topic, data))

    async def log(self, kind: str, data: Any = None) -> None:
        self.logged.append((kind, data))

    def now(self) -> datetime:
        return self.clock

    def check(self) -> None:
        self.meta.cancellation.check()

    @contextmanager
    def scope(self, name: str, *, call_id: str = "") -> Iterator[None]:
        token = _place.set(f"{_place.get()}{name}")
        if call_id:
            self.call_ids[_place.get()] = call_id
        try:
            yield
        finally:
            _place.reset(token)


def _result(text: str, *, is_error: bool = False) -> ToolExecutionResult:
    return ToolExecutionResult(content=[TextBlock(text=text)], is_error=is_error)
