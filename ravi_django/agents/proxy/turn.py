"""Run one request of a generator agent: perform the events that it yields, and send the values back."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from ravi_django.agents.proxy.events import ChatOutput, SubagentCall, ToolCall, TurnEnd, WaitForInput
from ravi_django.agents.react.result import ResultRejected, ResultType
from ravi_django.agents.tools.delegate import without_late_reply
from ravi_django.kernel import AgentId, AskOutcome, ChatMessage, ChatPayload, Message, RunContext, ToolExecutionResult
from ravi_django.kernel.errors import InvalidInputError, ResultInvalidError
from ravi_django.kernel.flow import FinishAgentResult, PauseForChildResult, PauseForInputResult
from ravi_django.kernel.people import HumanInput

_EVENTS = (
    "ChatOutput, ToolCall, SubagentCall, WaitForInput, TurnEnd, PauseForInputResult, PauseForChildResult or "
    "FinishAgentResult"
)


class ProxyTurn:
    """Performs the events of one request."""

    def __init__(self, ctx: RunContext, message: Message, name: str, wanted: ResultType | None) -> None:
        self._ctx, self._message, self._name, self._wanted = ctx, message, name, wanted
        self._texts: list[str] = []  # output since the last other event
        self._goes_on = False
        self._ended: TurnEnd | None = None
        self._result: Any = None

    async def perform(self, event: Any) -> Any:
        """Perform the event and return the value of the yield. Raises Ended after the turn's end."""
        if isinstance(event, ChatOutput):
            return self._output(event)
        self._goes_on = False
        match event:
            case TurnEnd(result=result):
                self._result = self._checked(result)
                self._ended = event
                raise Ended
            case ToolCall(name=name, arguments=arguments):
                return await self._tool(name, arguments)
            case SubagentCall():
                return await self._subagent(event)
            case WaitForInput():
                return await self._ask(event)
            case PauseForInputResult(request=request, choices=choices, context=context, timeout=timeout, to=to):
                return await self._ask(WaitForInput(request, choices, context, timeout=timeout, to=to))
            case PauseForChildResult():
                return await self._child(event)
            case FinishAgentResult():
                await self._hand_over(event)
            case _:
                raise TypeError(f"next_turn of {self._name} yielded {event!r:.200}; it may yield {_EVENTS}")

    def end(self) -> Any:
        """The turn's result: a Result if the agent has a `result_model`."""
        return self._checked(None) if self._ended is None else self._result

    def _checked(self, result: Any) -> Any:
        result = "".join(self._texts) if result is None else result
        if self._wanted is None:
            return result
        try:
            return self._wanted.from_value(result)
        except ResultRejected as error:
            raise ResultInvalidError(
                f"{self._name} ended its turn with an invalid {self._wanted.name}: {error}; "
                "pass a valid result to TurnEnd(…)"
            ) from None

    def _output(self, event: ChatOutput) -> None:
        if not isinstance(event.text, str):
            raise TypeError(f"ChatOutput needs a string, not {event.text!r:.200}")
        if not self._goes_on:
            self._texts.clear()
            self._goes_on = True
        self._texts.append(event.text)
        say = getattr(self._ctx, "say", None)
        if say is not None:
            say(event.text)

    async def _tool(self, name: str, arguments: Mapping[str, Any]) -> ToolExecutionResult:
        result = await self._ctx.tool(name, **arguments)
        if result.finish is not None:
            await self._hand_over(result.finish)
        return result

    async def _hand_over(self, finish: FinishAgentResult) -> NoReturn:
        await self._ctx.handoff(finish.target, finish.task, answers=self._message, context=finish.context)
        raise Ended  # pragma: no cover - a handoff does not return

    async def _subagent(self, event: SubagentCall) -> AskOutcome:
        target = event.agent if isinstance(event.agent, AgentId) else AgentId.parse(event.agent)
        task = event.task
        if isinstance(task, str):
            task = Message(target=target, payload=ChatPayload(message=ChatMessage.of("user", task)))
        if isinstance(task, Message):
            task = without_late_reply(task)
        return await self._ctx.ask(target, task, timeout=event.timeout)

    async def _child(self, event: PauseForChildResult) -> AskOutcome:
        if event.message is None:
            return await self._ctx.join(event.handle, timeout=event.timeout)
        return await self._ctx.ask(event.handle, without_late_reply(event.message), timeout=event.timeout)

    async def _ask(self, event: WaitForInput) -> HumanInput:
        options: dict[str, Any] = {"context": event.context, "free_text": event.free_text, "timeout": event.timeout}
        if event.to is not None:  # a custom context may not know it
            options["to"] = event.to
        ask: Callable[..., Awaitable[HumanInput]] = partial(self._ctx.ask_human, **options)
        if isinstance(event.request, str):
            return await ask(event.request, choices=event.choices)
        if not isinstance(event.request, Mapping) or not event.request:
            raise InvalidInputError("request must be one question, or several as {key: question}", field="request")
        if event.choices:
            raise InvalidInputError("choices are only for a single question", field="choices")
        answers = await asyncio.gather(*(ask(question) for question in event.request.values()))
        return HumanInput(
            action=next((one.action for one in answers if not one.answered), "answer"),
            values={key: one.text for key, one in zip(event.request, answers, strict=True) if one.answered},
            by=next((one.by for one in answers if one.by), ""),
        )


class Ended(Exception):
    """The turn has ended: `perform` stops the generator."""


class Steps:
    """One pass through a generator, async or plain, until its end or until `perform` raises Ended.

    An exception of `perform` is raised at the yield, and the generator may catch it. A BaseException that ends the
    lease (a suspension, the task's cancellation) passes through the generator and is raised in any case.
    """

    def __init__(self, made: Any, name: str) -> None:
        self._name = name
        if inspect.isasyncgen(made):
            self._generator: AsyncGenerator[Any, Any] | _Plain = made
        elif inspect.isgenerator(made):
            self._generator = _Plain(made)
        else:
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(f"{name} is not a generator, it returned {made!r:.200}; yield events, at least one TurnEnd")

    async def run(self, perform: Callable[[Any], Awaitable[Any]]) -> None:
        try:
            event = await self._generator.__anext__()
            while True:
                try:
                    value = await perform(event)
                except Ended:
                    return
                except Exception as error:
                    event = await self._generator.athrow(error)
                except BaseException as stop:
                    with suppress(StopAsyncIteration):  # the generator caught it: stop anyway
                        await self._generator.athrow(stop)
                    raise
                else:
                    event = await self._generator.asend(value)
        except StopAsyncIteration:
            return
        finally:
            await self._close()

    async def _close(self) -> None:
        """Run the `finally` blocks. Raises TypeError if one of them yields."""
        try:
            await self._generator.aclose()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise
            raise TypeError(f"{self._name} yielded after its turn had ended; do not yield in finally") from error


class _Plain:
    """A plain generator with the methods of an async one."""

    def __init__(self, generator: Generator[Any, Any, Any]) -> None:
        self._generator = generator

    async def __anext__(self) -> Any:
        return await self.asend(None)

    async def asend(self, value: Any) -> Any:
        return self._step(lambda: self._generator.send(value))

    async def athrow(self, error: BaseException) -> Any:
        return self._step(lambda: self._generator.throw(error))

    async def aclose(self) -> None:
        self._generator.close()

    @staticmethod
    def _step(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except StopIteration:
            raise StopAsyncIteration from None


_Any = TypeVar("_Any")


def own_copy(agent: _Any, *, shared: Collection[str] = (), base: type = object) -> _Any:
    """A copy of the agent with deep copies of its lists, dicts, sets and the like, and of those of its classes below
    `base`. Other objects, and the attributes in `shared`, are not copied."""
    copied = copy.copy(agent)
    known: dict[int, Any] = {}
    for name, value in [*_of_classes(type(agent), base), *vars(agent).items()]:
        if name not in shared and (fresh := _fresh(value, known)) is not value:
            copied.__dict__[name] = fresh
    return copied


def _of_classes(cls: type, base: type) -> Iterator[tuple[str, Any]]:
    for one in reversed(cls.__mro__[: cls.__mro__.index(base)]):
        yield from ((name, value) for name, value in vars(one).items() if not name.startswith("__"))


def _fresh(value: Any, known: dict[int, Any]) -> Any:
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, (list, dict, set, deque, bytearray)):
        copied: Any = copy.copy(value)  # keeps a deque's maxlen, a defaultdict's factory
        known[id(value)] = copied
        if isinstance(value, dict):
            for key, one in list(dict.items(value)):
                dict.__setitem__(copied, key, _fresh(one, known))
        elif isinstance(value, (list, deque)):
            for index, one in enumerate(list(value)):
                copied[index] = _fresh(one, known)
        return copied
    if type(value) is tuple:
        parts = tuple(_fresh(one, known) for one in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    return value
