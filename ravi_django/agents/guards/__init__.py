"""Middlewares that stand guard: what goes to the model, what comes from it, what tools are asked for. No Django."""

from ravi_django.agents.guards.input_guardrail import InputGuardrail
from ravi_django.agents.guards.output_guardrail import OutputGuardrail
from ravi_django.agents.guards.pii import PIIRedaction
from ravi_django.agents.guards.tool_guardrail import ToolGuardrail

__all__ = ["InputGuardrail", "OutputGuardrail", "PIIRedaction", "ToolGuardrail"]
