"""The public names of middlewares: base classes for your own, and the shipped ones.

The shipped ones are imported on first use, so that this module imports before Django is set up.
"""

from typing import TYPE_CHECKING

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
from ravi_django.wing import public

if TYPE_CHECKING:
    from ravi_django.calls.middleware import (
        AuditLog as AuditLog,
        ResponseCache as ResponseCache,
        UserRateLimit as UserRateLimit,
    )
    from ravi_django.wings.guards.guardrails import (
        InputGuardrail as InputGuardrail,
        OutputGuardrail as OutputGuardrail,
        ToolGuardrail as ToolGuardrail,
    )
    from ravi_django.wings.guards.pii import PIIRedaction as PIIRedaction

__getattr__ = public(
    __name__,
    {
        "calls.middleware": "AuditLog ResponseCache UserRateLimit",
        "wings.guards.guardrails": "InputGuardrail OutputGuardrail ToolGuardrail",
        "wings.guards.pii": "PIIRedaction",
    },
)
