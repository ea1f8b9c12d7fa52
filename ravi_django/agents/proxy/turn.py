"""One request's turn: what its generator yields is done, up to the turn's end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from ravi_django.agents.proxy.events import ChatOutput, ResumeWithInput, SubagentCall, ToolCall, TurnEnd, WaitForInput
from ravi_django.agents.proxy.generator import Ended
from ravi_django.agents.react.result import ResultRejected, ResultType
from ravi_django.agents.tools.delegate import without_late_reply
from ravi_django.kernel import AgentId, AskOutcome, ChatMessage, ChatPayload, Message, RunContext, ToolExecutionResult
from ravi_django.kernel.errors import InvalidInputError, ResultInvalidError
from ravi_django.kernel.flow import FinishAgentResult, PauseForChildResult, PauseForInputResult

_EVENTS = (
    "ChatOutput, ToolCall, SubagentCall, WaitForInput, TurnEnd, PauseForInputResult, PauseForChildResult or "
    "FinishAgentResult"
)


class ProxyTurn:
    """What one request's generator yields, done in its order."""

    def __init__(self, ctx: RunContext, message: Message, name: str, wanted: ResultType | None) -> None:
        self._ctx, self._message, self._name, self._wanted = ctx, message, name, wanted
        self._said: list[str] = []  # the output that was not followed by anything else yet
        self._goes_on = False
        self._ended: TurnEnd | None = None
        self._result: Any = None

    async def perform(self, event: Any) -> Any:
        """Do it; returns what the yield gives. Raises Ended after the turn's end."""
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
        """The turn's result: a Result, where the agent has a form for it."""
        return self._checked(None) if self._ended is None else self._result

    def _checked(self, result: Any) -> Any:
        result = "".join(self._said) if result is None else result
        if self._wanted is None:
            return result
        try:
            return self._wanted.from_value(result)
        except ResultRejected as error:
            raise ResultInvalidError(
                f"{self._name} ended its turn with what is no {self._wanted.name}: {error}; "
                "end it with TurnEnd(…) of such a result"
            ) from None

    def _output(self, event: ChatOutput) -> None:
        if not isinstance(event.text, str):
            raise TypeError(f"ChatOutput is of a text, not {event.text!r:.200}")
        if not self._goes_on:
            self._said.clear()
            self._goes_on = True
        self._said.append(event.text)
        say = getattr(self._ctx, "say", None)
        if say is not None:
            say(event.text)

    async def _tool(self, name: str, arguments: Mapping[str, Any]) -> ToolExecutionResult:
        result = await self._ctx.tool(name, **arguments)
        if result.finish is not None:
            await self._hand_over(result.finish)
        return result

    async def _hand_over(self, finish: FinishAgentResult) -> NoReturn:
        await self._ctx.handoff(finish.target, finish.task, answers=self._message)
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

    async def _ask(self, event: WaitForInput) -> ResumeWithInput:
        options: dict[str, Any] = {"context": event.context, "free_text": event.free_text, "timeout": event.timeout}
        if event.to is not None:  # a context of one's own may know nothing of addressees
            options["to"] = event.to
        ask: Callable[..., Awaitable[dict[str, Any]]] = partial(self._ctx.ask_human, **options)
        if isinstance(event.request, str):
            told = await ask(event.request, choices=event.choices)
            return ResumeWithInput(told["action"], told["text"], by=told["by"])
        if not isinstance(event.request, Mapping) or not event.request:
            raise InvalidInputError("request is a question, or several as {key: question}", field="request")
        if event.choices:
            raise InvalidInputError("choices go with a single question, not with several", field="choices")
        answers = await asyncio.gather(*(ask(question) for question in event.request.values()))
        return _together(dict(zip(event.request, answers, strict=True)))


def _together(answers: Mapping[str, Mapping[str, Any]]) -> ResumeWithInput:
    actions = [told["action"] for told in answers.values()]
    return ResumeWithInput(
        action=next((action for action in actions if action != "answer"), "answer"),
        values={key: told["text"] for key, told in answers.items() if told["action"] == "answer"},
        by=next((told["by"] for told in answers.values() if told["by"]), ""),
    )
