"""Values that the owner of a run may not read: arguments and results of tools with `visible="staff"`.

Rows, turns, frames and requests are stored whole, with `"hidden": true`. Readers get them through this module, in JSON
form. A process without the tool's code hides the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from ravi_django import users
from ravi_django.kernel import Addressees, ModelResponse, Tool, ToolRegistry, ToolUseBlock, TransientError
from ravi_django.models import HumanRequest

log = logging.getLogger("ravi.tools")

MARK = "hidden"
HIDDEN_TEXT = "shown to staff alone"
_PARTLY = {"llm.call": "content", "run.retried": "opened"}  # the part of the result
_OF_TOOLS = ("tool.call", "approval", "request.opened", "request.closed", "effect.checked")
KINDS = (*_PARTLY, *_OF_TOOLS, "log")  # of journal rows that may have a mark
_LOST = {"tool_use": "arguments", "tool_result": "content"}  # of a content block
_DECISION = ("action", "by", "instead_of")  # of an answer; the rest may repeat hidden values


def sees(user: Any) -> bool:
    """Whether `user`, who may read a run, reads values that are hidden from its owner."""
    is_active = bool(getattr(user, "is_active", False))
    return is_active and (users.has(user, "is_staff") or users.has(user, "is_superuser"))


# ------------------------------------------------------------------------------------------------- as it is written


def of_tool(tool: Tool | None) -> dict[str, bool]:
    """The mark for rows about a call of this tool; empty for a tool that is visible to owners."""
    return {MARK: True} if tool is not None and tool.visible == "staff" else {}


def of_call(request: Any) -> dict[str, bool]:
    """The same, from the recorded request of the call."""
    return {MARK: True} if _has_mark(request) else {}


def drop_error_text(error: Exception, tool: Tool) -> None:
    """Remove the message of a tool's error that becomes the run's error, which the owner reads."""
    if of_tool(tool) and isinstance(error, TransientError):
        log.warning("%s: %s", tool.name, error, extra={"action": "tool.hidden_error"})
        error.args = (f"{tool.name}: {HIDDEN_TEXT}",)


def mark_calls(response: ModelResponse, tools: ToolRegistry) -> ModelResponse:
    """The response with a mark on its calls of such tools."""
    original = response.message.content
    content = [_marked(block, tools) if isinstance(block, ToolUseBlock) else block for block in original]
    if all(new is old for new, old in zip(content, original, strict=True)):
        return response
    return response.model_copy(update={"message": response.message.model_copy(update={"content": content})})


def _marked(block: ToolUseBlock, tools: ToolRegistry) -> ToolUseBlock:
    return block.model_copy(update=mark) if (mark := of_tool(tools.get(block.tool_name))) else block


def without_owner(addressees: Addressees) -> Addressees:
    """The call is hidden from its owner: ask the staff instead."""
    steps = tuple(step.model_copy(update={"to": "staff"}) if step.to == "owner" else step for step in addressees.steps)
    return addressees.model_copy(update={"steps": steps})


def is_marked(kind: str, request: Any, result: Any, name: str = "") -> bool:
    """Whether a journal row has something hidden. An agent's own entry may have the key too, without a meaning."""
    if kind in _PARTLY:
        return isinstance(result, dict) and any(map(_has_mark, result.get(_PARTLY[kind]) or ()))
    return (kind in _OF_TOOLS or (kind, name) == ("log", "approval")) and (_has_mark(request) or _has_mark(result))


def _has_mark(value: Any) -> bool:
    return isinstance(value, dict) and value.get(MARK) is True


# ------------------------------------------------------------------------------------------------------ as it is read


def entry(row: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """A journal entry for its run's owner; `whole`: for staff."""
    kind, request, result = row["kind"], row["request"], row["result"]
    if not is_marked(kind, request, result, row["name"]):
        return row
    if whole or (kind == "request.opened" and result.get("to") == "owner"):
        return {**row, MARK: True}
    if kind in _PARTLY:
        visible = {"content": blocks, "opened": _requests}[part := _PARTLY[kind]](result[part])
        return {**row, "result": {**result, part: visible}, MARK: True}
    if isinstance(request, dict):
        request = {name: value for name, value in request.items() if name != "ran_with"} | {"arguments": None}
    error = row["error"] and {**row["error"], "message": HIDDEN_TEXT}
    return {**row, "request": request, "result": None, "error": error, MARK: True}


def blocks(content: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Content blocks of a message."""
    return [
        {**without_origin(block), _LOST[block["type"]]: None} if _has_mark(block) and block["type"] in _LOST else block
        for block in content
    ]


def without_origin(block: dict[str, Any]) -> dict[str, Any]:
    """It may have the text of the arguments."""
    return {name: value for name, value in block.items() if name != "origin"}


def _requests(opened: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [request_without_hidden(one) if _has_mark(one) and one.get("to") != "owner" else one for one in opened]


def frame(body: dict[str, Any]) -> dict[str, Any]:
    """A frame of a stream."""
    if not _has_mark(body):
        return body
    if body["type"] == "request":
        return _requests([body])[0]
    content = body.get("content")
    if isinstance(content, list):
        return {**body, "content": blocks(content)}
    if isinstance(content, dict):
        content = {name: None if name in ("arguments", "text") else value for name, value in content.items()}
    return {**body, "content": content}


def is_about(request: HumanRequest) -> bool:
    """Whether a request is about a call that is hidden from owners."""
    return _has_mark(request.details)


def hides(request: HumanRequest, user: Any, may_answer: bool) -> bool:
    """Whether `user` (None: the site's operator) may not read the subject of this request: they own the run, and others
    decide."""
    if user is None or not is_about(request) or request.to == "owner":
        return False
    return bool(request.owner_id == user.pk) and not may_answer and not sees(user)


def request_without_hidden(request: dict[str, Any]) -> dict[str, Any]:
    """A request without its hidden values, for a user who may not see them."""
    answer = request.get("answer")
    decision = answer and {name: answer[name] for name in _DECISION if name in answer}
    lost = dict.fromkeys(("arguments", "choices", "questions"))
    texts = {"text": f"{request['tool']}: {HIDDEN_TEXT}", "context": ""}
    return {**request, **lost, **texts, **({"answer": decision} if "answer" in request else {})}
