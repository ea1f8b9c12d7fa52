"""A Python function as a tool: `@tool` reads name, schema and description from the function itself."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, overload

from ravi_django.agents.tools.approvers import checked_policy, checked_visible, refuse_owner
from ravi_django.agents.tools.signature import layers, read_docstring, read_signature, text_of
from ravi_django.kernel import Addressees, Effect, Risk, Tool
from ravi_django.kernel.checks import check_seconds, check_whole, did_you_mean

RiskRule = Callable[[dict[str, Any]], Risk | str]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")  # accepted by every provider


class FunctionTool(Tool):
    """Wraps a sync or async function. The object stays callable like the function.

    A parameter annotated `RunContext` gets the context, one annotated `HumanInput` the answer to a pause that the tool
    returned (None in the first call). Both are hidden from the model.
    Raises TypeError or ValueError, naming the fix, if the function cannot be a tool.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        risk: Risk | str | RiskRule = Risk.SAFE,
        effect: Effect | str | None = None,
        timeout: float | timedelta | None = None,
        permission: str | None = None,
        max_calls: int | None = None,
        max_result_bytes: int | None = None,
        approval: str = "by_risk",
        approvers: Any = None,
        check: Callable[[dict[str, Any], str], Any] | None = None,
        visible: str = "owner",
    ) -> None:
        _refuse_function(function)
        docstring = read_docstring(function)
        signature = read_signature(function, docstring.parameters)
        self.function = function
        called = next(layer for layer in layers(function) if not isinstance(layer, functools.partial))
        self.name = getattr(called, "__name__", "") if name is None else name
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise ValueError(
                f"a tool's name must be 1 to 64 letters, digits, _ or -, not {self.name!r}; set it with @tool(name=…)"
            )
        self.description = docstring.description if description is None else description
        self.parameters = signature.parameters
        self.context_parameter = signature.context_parameter
        self.input_parameter = signature.input_parameter
        self.risk, self.compute_risk = _checked_risk(risk)
        self.effect = None if effect is None else _choice(Effect, "effect", effect)
        if self.effect is Effect.TRANSACTIONAL and inspect.iscoroutinefunction(inspect.unwrap(called)):
            raise ValueError(f'{self.name}: effect="transactional" needs a plain def, run inside the transaction')
        if self.effect is Effect.TRANSACTIONAL and self.input_parameter is not None:
            raise ValueError(f'{self.name}: a transaction cannot wait for an answer; use effect="at_most_once"')
        self.check = check
        if check is not None and (not callable(check) or self.promised_effect is not Effect.AT_MOST_ONCE):
            raise ValueError(f'{self.name}: check= must be a function, and needs effect="at_most_once"')
        self.timeout = None if timeout is None else check_seconds("timeout", timeout)
        self.permission = _checked_permission(permission)
        self.max_calls = None if max_calls is None else check_whole("max_calls", max_calls)
        self.max_result_bytes = None if max_result_bytes is None else check_whole("max_result_bytes", max_result_bytes)
        self.approval = checked_policy(approval)
        self.approvers = None if approvers is None else Addressees.of(approvers, "a tool's approvers")
        self.visible = checked_visible(visible)
        refuse_owner(self, self.approvers)
        self._signature = signature
        functools.update_wrapper(self, function, updated=())
        self.__doc__ = text_of(function)
        # The function itself, so the runtime can see whether it is a coroutine function.
        execute: Any = function
        is_object = called is function and not inspect.isroutine(function)
        setattr(self, "execute", execute.__call__ if is_object else execute)  # noqa: B010 - a method for the type checker

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._signature.validate(super().validate(arguments))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        risk = "by arguments" if self.compute_risk is not None else self.risk.value
        return f"<tool {self.name} risk={risk}>"


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk | str | RiskRule = Risk.SAFE,
    effect: Effect | str | None = None,
    timeout: float | timedelta | None = None,
    permission: str | None = None,
    max_calls: int | None = None,
    max_result_bytes: int | None = None,
    approval: str = "by_risk",
    approvers: Any = None,
    check: Callable[[dict[str, Any], str], Any] | None = None,
    visible: str = "owner",
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: `@tool`, or `@tool(risk="high", effect="at_most_once", timeout=5, …)`.

    risk: "safe", "high" or "critical", or a function of a call's arguments (a dict) that returns one of them; if it
    fails, the call counts as critical.
    effect: "idempotent", "at_most_once" or "transactional". The default depends on the risk; for a computed risk it is
    at_most_once.
    check: only for an at-most-once tool: a sync or async function of a call's arguments and its idempotency key. It may
    only read. It is called if an effect may have happened, and returns Happened(result), NotHappened, or None if it
    does not know; then a person is asked.
    timeout: seconds, or a timedelta.
    permission: a Django permission ("app.codename") that the run's owner needs.
    max_calls: of this tool in one run.
    max_result_bytes: how much of a result the model gets at once; an agent with a ReadResultTool can read the rest.
    approval: "by_risk", "always" or "never"; overrides the agent's approval_required_risk.
    approvers: the approvers (see Addressees) if the agent names nobody for it.
    visible: "staff" hides arguments and results from the owner of the run, on every surface.
    """
    if function is not None:
        return FunctionTool(function, **options)
    if unknown := [name for name in options if name not in _OPTIONS]:
        near = did_you_mean(unknown[0], _OPTIONS)
        raise TypeError(f"@tool has no option {unknown[0]!r}; its options are {', '.join(_OPTIONS)}{near}")
    return functools.partial(FunctionTool, **options)


_OPTIONS = [name for name in inspect.signature(FunctionTool).parameters if name != "function"]


def _refuse_function(function: Any) -> None:
    if isinstance(function, str):
        raise TypeError(f"@tool got {function!r}; write @tool(name={function!r})")
    if not callable(function) or any(map(inspect.isclass, layers(function))):
        raise TypeError(f"@tool takes a function, not {function!r}")
    if hasattr(function, "dispatch") and hasattr(function, "registry"):
        raise TypeError(f"tool {function!r} is called by its first positional argument; wrap it in a function")
    codes = (function, function.__call__)  # of an object
    if any(inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code) for code in codes):
        raise TypeError(f"tool {function!r} is a generator; return one value, such as a list")


def _choice(kind: Any, field: str, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"a tool's {field} must be one of {choices}, not {value!r}") from None


def _checked_risk(risk: Any) -> tuple[Risk, RiskRule | None]:
    """The tool's risk, and the function that computes the risk of a call."""
    if isinstance(risk, str) or not callable(risk):
        return _choice(Risk, "risk", risk), None
    if inspect.iscoroutinefunction(risk) or inspect.isclass(risk):
        raise TypeError(f"a tool's risk must be a string or a sync function of the arguments, not {risk!r}")
    return Risk.CRITICAL, risk


def _checked_permission(permission: Any) -> str | None:
    if permission is None:
        return None
    if not isinstance(permission, str) or not all(permission.partition(".")):
        raise ValueError(f'a tool\'s permission must look like "app_label.codename", not {permission!r}')
    return permission
