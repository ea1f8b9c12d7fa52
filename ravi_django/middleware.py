"""The public names of middlewares: base classes for your own, and the shipped ones.

Middlewares that need the models are imported on first use, so that this module imports before Django is set up.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ravi_django.agents.middleware import Hooks as Hooks, MiddlewarePipeline as MiddlewarePipeline
from ravi_django.kernel import (
    AgentContextProtocol as AgentContextProtocol,
    AgentMiddleware as AgentMiddleware,
    AgentRunContext as AgentRunContext,
    ChatContext as ChatContext,
    ChatMiddleware as ChatMiddleware,
    FunctionContext as FunctionContext,
    FunctionMiddleware as FunctionMiddleware,
    GuardrailError as GuardrailError,
    HookCall as HookCall,
    HookEvent as HookEvent,
    MiddlewareTermination as MiddlewareTermination,
    RateLimitedError as RateLimitedError,
)
from ravi_django.wings.guards.guardrails import (
    InputGuardrail as InputGuardrail,
    OutputGuardrail as OutputGuardrail,
    ToolGuardrail as ToolGuardrail,
)
from ravi_django.wings.guards.pii import PIIRedaction as PIIRedaction

if TYPE_CHECKING:
    from ravi_django.calls.middleware import (
        AuditLog as AuditLog,
        ResponseCache as ResponseCache,
        UserRateLimit as UserRateLimit,
    )

_OF_THE_SITE = frozenset({"AuditLog", "ResponseCache", "UserRateLimit"})


def __getattr__(name: str) -> Any:
    if name in _OF_THE_SITE:
        return getattr(import_module("ravi_django.calls.middleware"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
