"""How a model's answer ends: cut off, empty, refused, or paused.

The hint about it to the model is in the next request only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from ravi_django.agents.messages import final_text
from ravi_django.kernel import ChatMessage, FinishReason, ModelError, ModelResponse, Role
from ravi_django.kernel.content import TextBlock, ToolUseBlock

CUT = (
    "Your answer was cut off at the limit of output tokens, and nothing of it was done. Answer again, and shorter: "
    "call one tool at a time, with less in its arguments."
)
SILENT = "Your answer was empty. Answer now, or call a tool."
REFUSED = "The model gave no answer: its provider's filter stopped it."

PAUSES = 3  # of one answer: then it ends with the text up to there

_REFUSALS = (FinishReason.FILTER, FinishReason.REFUSAL)


def last_answer(messages: Sequence[ChatMessage]) -> str:
    """The text of the model since the last user message, or "": its last answer, with the parts before each pause."""
    answer = [message.text for message in takewhile(lambda message: message.role is Role.ASSISTANT, reversed(messages))]
    if text := "\n".join(part for part in reversed(answer) if part.strip()):
        return text
    return final_text(list(takewhile(lambda message: message.role is not Role.USER, reversed(messages)))[::-1])


def without_refused(response: ModelResponse) -> ModelResponse:
    """A refusal as words: its calls are not made."""
    if not is_refusal(response):
        return response
    content = [block for block in response.content if not isinstance(block, ToolUseBlock)]
    if not response.text.strip():
        content = [TextBlock(text=REFUSED)]
    return response.model_copy(update={"message": response.message.model_copy(update={"content": content})})


def is_refusal(response: ModelResponse) -> bool:
    return response.finish_reason in _REFUSALS


def is_paused(response: ModelResponse) -> bool:
    """Whether the model continues when it gets its blocks back."""
    return response.finish_reason == FinishReason.PAUSE and bool(response.content) and not response.message.tool_calls


def hint_for(response: ModelResponse, messages: Sequence[ChatMessage]) -> ChatMessage | None:
    """The hint for one more request to the model; None if this is its answer. A cut answer without calls is one."""
    calls, has_text = response.message.tool_calls, bool(response.text.strip())
    if response.finish_reason == FinishReason.LENGTH and (calls or not has_text):
        return ChatMessage.of(Role.USER, CUT)
    if not calls and not has_text and not last_answer(messages):
        return ChatMessage.of(Role.USER, SILENT)
    return None


_SCHEMA = re.compile(
    r"response.?(?:format|schema|mime.?type)|output.?(?:format|config)|structured.?output|json.?(?:schema|mode)|guided",
    re.IGNORECASE,
)


def refuses_schema(error: ModelError) -> bool:
    """Whether the provider's error is about the schema of a typed result."""
    return error.status in (400, 422) and _SCHEMA.search(str(error)) is not None


def error_of(response: ModelResponse) -> ModelError:
    """For an answer that ends so a second time."""
    if response.finish_reason == FinishReason.LENGTH:
        message = "the model's answers are cut off at the limit of output tokens; raise max_tokens or ask for less"
        return ModelError(message, type="AnswerCut")
    return ModelError("the model's answers are empty; look at its instructions and tools", type="EmptyResponse")
