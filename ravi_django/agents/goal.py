"""The way of one message to its typed result: which answers count, what the model is told of the others."""

from __future__ import annotations

from collections.abc import Sequence

from ravi_django.agents.result import Result, ResultRejected, ResultType
from ravi_django.agents.transcript import CORRECTION
from ravi_django.kernel import (
    ChatMessage,
    ContentBlock,
    ModelResponse,
    ResultInvalidError,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)

_TAKEN = "The result was taken."
_NOT_ALONE = (
    "The result was not taken: another tool that you called in the same turn failed. Look at its result, then call "
    "this one again, alone."
)
_SECOND = "Not looked at: one result is enough."
_FIX = "Answer again with the fixed result alone"


class Goal:
    """Reads the recorded answers alone, so a replay comes to the same, whatever the model is offered by then.

    A call of the final-result tool counts, and so does a turn without calls whose text is the JSON. After `retries`
    more tries ResultInvalidError is raised.
    """

    def __init__(self, wanted: ResultType, tool_name: str, retries: int) -> None:
        self.result: Result | None = None
        self._wanted, self._tool_name, self._left = wanted, tool_name, retries
        self._error: str | None = None  # why the last turn's answer does not count

    def takes(self, call: ToolUseBlock) -> bool:
        return call.tool_name == self._tool_name

    def read_text(self, response: ModelResponse) -> ChatMessage | None:
        """Of a turn without calls: None when it is the result, else what the model is told."""
        try:
            self.result = self._wanted.from_text(response.text)
        except ResultRejected as error:
            cut = " (it was cut off: it got too long)" if response.finish_reason == "length" else ""
            self._error = f"{error}{cut}"
            words = f"Your answer is not a valid result: {self._error}. {_FIX}, as JSON."
            return ChatMessage(role=Role.USER, name=CORRECTION, content=[TextBlock(text=words)])
        return None

    def answer_calls(self, calls: Sequence[ToolUseBlock], results: Sequence[ToolResultBlock]) -> list[ContentBlock]:
        """A result for every call, in their order; `results` are those of the calls that are not for the goal.

        A valid result that comes with other calls stands when these went well: the model could not know it.
        """
        failed = any(result.is_error for result in results)
        others = iter(results)
        return [self._answer(call, failed) if self.takes(call) else next(others) for call in calls]

    def _answer(self, call: ToolUseBlock, failed: bool) -> ToolResultBlock:
        if self.result is not None:
            return _said(call, _SECOND)
        try:
            result = self._wanted.from_arguments(call.arguments)
        except ResultRejected as error:
            self._error = str(error)
            return _said(call, f"The result is not valid: {error}. {_FIX}, with this tool.", is_error=True)
        if failed:
            return _said(call, _NOT_ALONE, is_error=True)
        self.result = result
        return _said(call, _TAKEN)

    def said(self) -> ChatMessage:
        """The result as the assistant's words: what a call gave is then in the conversation for everybody to read."""
        assert self.result is not None
        return ChatMessage.of(Role.ASSISTANT, str(self.result.text))

    def count(self) -> None:
        """Once a turn's answers are kept: raises ResultInvalidError when an invalid one was the last allowed."""
        error, self._error = self._error, None
        if error is None or self.result is not None:
            return
        if not self._left:
            raise ResultInvalidError(
                f"the model gave no valid {self._wanted.name}: {error}; look at its answers, then loosen the schema "
                "or raise result_retries"
            )
        self._left -= 1


def _said(call: ToolUseBlock, words: str, *, is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=words)], is_error=is_error)
