"""The public names of middlewares: base classes for your own, and the shipped ones.

Middlewares that need the models are imported on first use, so that this module imports before Django is set up.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ravi_django.agents.guards.guardrails import InputGuardrail, OutputGuardrail, ToolGuardrail
from ravi_django.agents.guards.pii import PIIRedaction
from ravi_django.agents.hooks import Hooks
from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.kernel import (
    AgentContextProtocol,
    AgentMiddleware,
    AgentRunContext,
    ChatContext,
    ChatMiddleware,
    FunctionContext,
    FunctionMiddleware,
    GuardrailError,
    HookCall,
    HookEvent,
    MiddlewareTermination,
    RateLimitedError,
)

if TYPE_CHECKING:
    from ravi_django.runtime.middleware import AuditLog, ResponseCache, UserRateLimit

__all__ = [
    "AgentContextProtocol",
    "AgentMiddleware",
    "AgentRunContext",
    "AuditLog",
    "ChatContext",
    "ChatMiddleware",
    "FunctionContext",
    "FunctionMiddleware",
    "GuardrailError",
    "HookCall",
    "HookEvent",
    "Hooks",
    "InputGuardrail",
    "MiddlewarePipeline",
    "MiddlewareTermination",
    "OutputGuardrail",
    "PIIRedaction",
    "RateLimitedError",
    "ResponseCache",
    "ToolGuardrail",
    "UserRateLimit",
]

_OF_THE_SITE = frozenset({"AuditLog", "ResponseCache", "UserRateLimit"})


def __getattr__(name: str) -> Any:
    if name in _OF_THE_SITE:
        return getattr(import_module("ravi_django.runtime.middleware"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
