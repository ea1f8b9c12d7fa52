"""The options of OpenAI's clients in three classes. docs/reference/clients.md has the same table.

An agent has its own model, tools and instructions. A neutral value says what is so anyway. A hint is ignored, and named
in the header `x-ravi-ignored`. All else would change what the answer means, so it is refused with the way to get it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ravi_django import access
from ravi_django.agents.react.result import ResultType
from ravi_django.agents.tools.client_tool import checked_tools
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.models import HumanRequest
from ravi_django.services.exchanges import OWN_INSTRUCTIONS, quotes_instructions

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "background": (False,),
    "include": ([],),
    "logprobs": (False,),
    "store": (True,),
    "truncation": ("disabled",),
}
HINTS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "user", "verbosity"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "max_tool_calls", "parallel_tool_calls"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs"),
        *("reasoning", "reasoning_effort", "include", "store", "truncation", "context_management", "prediction"),
        *("service_tier", "stream_options", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    }
)
_OWN_TOOLS = "an agent has its own tools"
_CHOOSES = "an agent chooses its tools itself; for JSON send response_format to an agent with a result_model"
REFUSED = {
    "n": "a run has one answer; make another call",
    "tools": f"{_OWN_TOOLS}; only functions named as its requests to people are accepted",
    "functions": _OWN_TOOLS,
    "tool_choice": _CHOOSES,
    "function_call": _CHOOSES,
    "web_search_options": _OWN_TOOLS,
    "modalities": "an agent answers with text",
    "audio": "an agent answers with text",
    "background": "stream, or read v1/responses/{id} while the status is in_progress",
    "instructions": OWN_INSTRUCTIONS,
    "prompt": OWN_INSTRUCTIONS,
    "response_format": "the type is text, json_object or json_schema",
    "text": "the type of format is text, json_object or json_schema",
}
KINDS = frozenset(HumanRequest.Kind.values)
# For the schema of the API. Which values are possible depends on the agent and the settings.
PROPERTIES: dict[str, Any] = {name: {} for name in (*sorted({*NEUTRAL, *HINTS}), "response_format", "text")}


def read(body: Mapping[str, Any], fields: Collection[str]) -> tuple[dict[str, Any], list[str], str]:
    """A client's body as the `fields` that the endpoint reads, the hints that it sends, and the field that asks for
    JSON, or "". Raises InvalidInputError."""
    known: dict[str, Any] = {}
    ignored: list[str] = []
    typed_by = ""
    for name, value in body.items():
        if name in fields:
            known[name] = value
        elif value is None or value in NEUTRAL.get(name, ()):
            continue
        elif name in ("response_format", "text"):
            typed_by = _json_by(name, value) or typed_by
        elif _is_about_requests(name, value):
            continue
        elif name in HINTS:
            ignored.append(name)
        elif name in REFUSED:
            raise _refused(name, REFUSED[name] + _naming(name, value))
        else:
            raise InvalidInputError(f"unknown field {name!r:.100}", field=name[:100])
    if known.get("instructions") and not quotes_instructions():
        raise _refused("instructions", OWN_INSTRUCTIONS)
    return known, ignored, typed_by


def client_tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the client's own functions out of its body, as `checked_tools` gives them."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools or _is_about_requests("tools", tools):
        return []
    if not all(isinstance(tool, dict) and tool.get("type") == "function" for tool in tools):
        raise _refused("tools", REFUSED["tools"] + _naming("tools", tools))
    return checked_tools([tool.get("function", tool) for tool in body.pop("tools")])


def check_takes_tools(user: Any, agent: AgentId, tools: list[dict[str, Any]]) -> None:
    """Raises InvalidInputError if the agent takes no tools of a client, and the errors of `access.find`."""
    if tools and not access.find(user, agent).client_tools:
        names = ", ".join(repr(tool["name"]) for tool in tools[:5])
        raise _refused("tools", f"{REFUSED['tools']}, not {names}; {agent} has no client_tools")


def check_typed(user: Any, agent: AgentId, field: str) -> None:
    """Raises InvalidInputError if the agent answers with text, and the errors of `access.find`."""
    runnable = access.find(user, agent)
    is_typed = isinstance(getattr(runnable.in_code, "result", None), ResultType) or runnable.spec.get("result_schema")
    if not is_typed:
        way = "give the agent a result_model, or call one that has it"
        raise InvalidInputError(f"{field} is not possible: {agent} answers with text; {way}", field=field)


def _json_by(name: str, value: Any) -> str:
    """The field that asks for JSON, or "" for text."""
    form = value.get("format") or {"type": "text"} if name == "text" and isinstance(value, dict) else value
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise _refused(name, REFUSED[name])
    return "" if kind == "text" else "text.format" if name == "text" else name


def _is_about_requests(name: str, value: Any) -> bool:
    """Whether the tools are named as our kinds of request: a library then calls its function for a request."""
    if name == "tool_choice":
        return isinstance(value, dict) and _name_of(value) in KINDS
    return name == "tools" and isinstance(value, list) and all(_name_of(tool) in KINDS for tool in value)


def _name_of(tool: Any) -> Any:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _naming(field: str, value: Any) -> str:
    if field != "tools" or not isinstance(value, list):
        return ""
    other = next((name for name in map(_name_of, value) if name not in KINDS), None)
    return f" ({', '.join(sorted(KINDS))}), not {other!r:.80}"


def _refused(field: str, way: str) -> InvalidInputError:
    return InvalidInputError(f"{field} is not possible: {way}", field=field)
