"""Approval: a model proposes, a person allows it, changes it or says no; and small sums need nobody.

    python -m examples.approval "Send an invoice of 500 to ACME"

The run that waits for the decision is rows. Staff decide in the admin's inbox, over REST, or with

    python manage.py ravi_requests
    python manage.py ravi_answer ID approve
    python manage.py ravi_answer ID edit --arguments '{"customer": "ACME", "amount": 50}'
    python manage.py ravi_answer ID deny --reason "They have not ordered."

The group `accounts` has an hour for it, staff the rest of the day; what nobody has decided by then is denied. Where
there is nobody to ask it is denied at once. See `running` for how to start it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from examples.running import play
from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import Agent, ChatModel

SMALL = 100  # euros
sent: list[str] = []


def risk_of(arguments: dict[str, Any]) -> str:
    return "safe" if 0 < arguments["amount"] < SMALL else "high"


@tool(risk=risk_of, effect="at_most_once")
def send_invoice(customer: str, amount: float) -> str:
    """Send an invoice.

    Args:
        customer: the customer's name
        amount: in euros
    """
    sent.append(f"{amount:g} to {customer}")
    return f"Invoice of {amount:g} sent to {customer}."


def approval(model: ChatModel) -> list[Agent]:
    clerk = ReActAgent(
        "clerk",
        model=model,
        tools=[send_invoice],
        approvers=[("group:accounts", timedelta(hours=1)), ("staff", timedelta(hours=23))],
        system_instructions="You send invoices for a small company. Say what became of them.",
    )
    return [clerk]


if __name__ == "__main__":
    from ravi_django.integrations.llm import model_from_env

    play(approval(model_from_env()), "Send an invoice of 500 to ACME")
