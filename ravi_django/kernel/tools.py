"""A tool: a name and a schema for the model, a promise about its effect for the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from ravi_django.kernel.errors import ToolArgumentsError

INVALID_ARGUMENTS_KEY = "__invalid_json__"  # a model client stores the model's text here if it is not a JSON object
_SHOWN_TEXT = 200  # characters of it that the model is shown
MAX_ARGUMENTS_DEPTH = 50  # messages and rows nest them again, and encoders have a limit


class Risk(StrEnum):
    """The harm that a call can do. From `high` on a call needs an approval, by default."""

    SAFE = "safe"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for safe, 1 for high, 2 for critical."""
        return _RISK_RANK[self]


_RISK_RANK = {Risk.SAFE: 0, Risk.HIGH: 1, Risk.CRITICAL: 2}


class Effect(StrEnum):
    """The meaning of a crash between the effect and its row."""

    IDEMPOTENT = "idempotent"  # runs again under the same idempotency key
    AT_MOST_ONCE = "at_most_once"  # a started row first; never retried automatically
    TRANSACTIONAL = "transactional"  # commits with its journal row: exactly once

    @classmethod
    def default_for(cls, risk: Risk) -> Effect:
        """The effect of a tool of this risk that states none."""
        return cls.IDEMPOTENT if risk is Risk.SAFE else cls.AT_MOST_ONCE


@dataclass(frozen=True)
class Happened:
    """A check's answer: the effect has happened. `result` stands for the tool's own result."""

    result: Any = None


class NotHappened:
    """A check's answer: the effect has not happened, and the tool runs again as the next attempt."""


class ToolSpec(BaseModel):
    """The part of a tool that the model sees."""

    model_config = ConfigDict(frozen=True)

    name: str  # unique among the tools of an agent
    description: str = ""  # when to use it, for the model
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})  # JSON schema


class Tool:
    """Base of all tools: set the attributes, write `execute` (sync or async, keyword arguments, any JSON result).

    An instance serves concurrent calls: keep no state of a call on it.
    """

    name: str = ""  # 1 to 64 letters, digits, _ or -
    description: str = ""  # when to use it, for the model
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # JSON schema
    risk: Risk = Risk.SAFE  # with `compute_risk`: the risk where there is no call
    compute_risk: Callable[[dict[str, Any]], Any] | None = None  # a call's risk, from its validated arguments alone
    effect: Effect | None = None  # None: by the risk
    # Of an at-most-once tool: (arguments, idempotency key) -> Happened(result), NotHappened or None for unknown.
    check: Callable[[dict[str, Any], str], Any] | None = None
    timeout: float | None = None  # seconds; None: RAVI["TOOL_TIMEOUT_S"]
    permission: str | None = None  # a Django permission that the run's owner needs
    approval: str = "by_risk"  # "by_risk" (the agent's approval_required_risk), "always" or "never"
    approvers: Any = None  # see Addressees.of; the agent's own approvers for the tool come first
    visible: str = "owner"  # arguments and results: for the "owner" and staff, or "staff" alone
    max_calls: int | None = None  # of this tool in a run; None: limited by RAVI["MAX_TOOL_CALLS"] alone
    max_result_bytes: int | None = None  # shown to the model; at most RAVI["MAX_RESULT_BYTES"]
    context_parameter: str | None = None  # the parameter that gets the RunContext, hidden from the model
    input_parameter: str | None = None  # the one that gets a person's HumanInput after a pause, hidden too
    waits: bool = False  # a call may wait for a person without `input_parameter` and approval

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments ready for `execute`. Raises ToolArgumentsError with a message for the model.

        Call this first in an override: it refuses arguments that the model client could not read as JSON.
        """
        if INVALID_ARGUMENTS_KEY in arguments:
            text = str(arguments[INVALID_ARGUMENTS_KEY])[:_SHOWN_TEXT]
            raise ToolArgumentsError(f"the arguments were not valid JSON: {text}", field="arguments")
        return arguments

    def execute(self, **arguments: Any) -> Any:
        """Run the tool; may be a coroutine function. Raise ToolRefused before the effect to say that nothing
        happened."""
        raise NotImplementedError(f"{type(self).__name__} needs an execute method")

    def risk_for(self, arguments: dict[str, Any]) -> Risk:
        """The risk of a call with these arguments of the model.

        `compute_risk` gets them validated, with defaults. If it fails or returns no risk, or the arguments do not fit,
        the call counts as critical.
        """
        if self.compute_risk is None:
            return Risk(self.risk)
        with suppress(Exception):
            return Risk(self.compute_risk(self.validate(deepcopy(arguments))))
        return Risk.CRITICAL

    @property
    def promised_effect(self) -> Effect:
        """The effect of the riskiest call: `effect`, or the default of the risk."""
        if self.effect is None and self.compute_risk is not None:
            return Effect.AT_MOST_ONCE  # the promise for the riskiest call
        return self.effect or Effect.default_for(self.risk)

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it: name, description and JSON schema of the arguments."""
        return ToolSpec(name=self.name, description=self.description, parameters=dict(self.parameters))


def is_too_deep(arguments: Any) -> bool:
    """Whether JSON is nested more than MAX_ARGUMENTS_DEPTH levels deep. Level by level: deep values must not exhaust
    the stack."""
    level = [arguments]
    for _ in range(MAX_ARGUMENTS_DEPTH):
        inner_values = {  # each once: a value may contain itself
            id(inner): inner
            for part in level
            if isinstance(part, dict | list | tuple)
            for inner in (part.values() if isinstance(part, dict) else part)
            if isinstance(inner, dict | list | tuple)
        }
        level = list(inner_values.values())
        if not level:
            return False
    return True


@runtime_checkable
class ToolRegistry(Protocol):
    """Tools by name; the last one added under a name wins."""

    def add(self, tool: Any) -> None:
        """Add a tool."""

    def get(self, name: str) -> Tool | None:
        """The tool of this name; None if there is none."""

    def all(self) -> list[Tool]:
        """All tools."""

    def names(self) -> list[str]:
        """The names of all tools."""

    def __iter__(self) -> Iterator[Tool]: ...


def specs_of(tools: Iterable[Tool | ToolSpec]) -> list[ToolSpec]:
    """The specs of tools, as the model sees them."""
    return [tool if isinstance(tool, ToolSpec) else tool.spec for tool in tools]
