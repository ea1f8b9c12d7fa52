"""The demo site's agents, found and registered by the app's autodiscovery."""

from decimal import Decimal

from django.core import mail

import project.feeds
import project.tour  # noqa: F401 - these two register more agents
from project.models import Invoice
from ravi_django import register, tool
from ravi_django.agents import OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.capabilities.tools import CalculatorTool, CurrentTimeTool
from ravi_django.errors import ToolRefused
from ravi_django.integrations.llm import model_from_env
from ravi_django.kernel import RunContext


@tool(risk="high", effect="at_most_once")
def send_invoice(customer: str, amount: float, ctx: RunContext) -> str:
    """Send an invoice to a customer.

    Args:
        customer: the customer's name
        amount: in euros, more than zero
    """
    if not 0 < amount < 1e10:
        raise ToolRefused(f"the amount must be more than zero and less than ten billion, not {amount}")
    invoice = Invoice.objects.create(
        customer=customer, amount=Decimal(str(amount)), idempotency_key=ctx.idempotency_key
    )
    return f"Invoice {invoice.pk}: {invoice.amount} sent to {invoice.customer}."


@tool(risk="high", effect="at_most_once", approvers="owner")
def send_mail(to: str, text: str) -> str:
    """Send an e-mail. The user confirms it.

    Args:
        to: the address
        text: what it says
    """
    mail.send_mail("From your assistant", text, None, [to])
    return f"Sent to {to}."


register(
    ReActAgent(
        "assistant",
        model=model_from_env(),
        tools=[CalculatorTool(), CurrentTimeTool(), send_invoice, send_mail],
        approvers="staff",
        system_instructions=(
            "You are the assistant of a small company. Answer briefly. Use the calculator for arithmetic, and "
            "send_invoice and send_mail only when the person asks for an invoice or a mail to be sent."
        ),
    ),
    access="authenticated",
)

register(
    OrchestratorAgent(
        "team",
        model=model_from_env(),
        sub_agents=[
            SubAgentConfig(
                ReActAgent(
                    "researcher",
                    model=model_from_env(),
                    tools=[CalculatorTool(), CurrentTimeTool()],
                    system_instructions="You find facts. Answer in one sentence. Use the calculator for arithmetic.",
                ),
                description="Finds and researches facts, calculates, knows the time.",
            ),
            SubAgentConfig(
                ReActAgent(
                    "editor",
                    model=model_from_env(),
                    system_instructions="You write what you are asked for, in three sentences at most.",
                ),
                description="Writes, edits and reviews texts: notes, letters, summaries.",
            ),
        ],
        system_instructions=(
            "You lead a researcher and an editor. Give each the part that is theirs, with all that it needs to know, "
            "both at once where neither needs the other's answer. Then answer briefly, from what they say."
        ),
    ),
    access="authenticated",
)
