"""What operators read on the run page beside the timeline: the run's columns, its first message, the tree's budget."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.utils.translation import gettext

from ravi_django.models import Agent, BudgetAccount, InboxMessage, Run
from ravi_django.pages import formats
from ravi_django.runs.budgets.accounts import tree_account

OUTPUT = 20_000  # characters


def details_of(run: Run) -> dict[str, Any]:
    """For the template. Three queries."""
    account = tree_account(run.tree_id)
    payload = InboxMessage.objects.filter(run=run).order_by("id").values_list("body__payload", flat=True).first()
    has_spec = run.agent_version is not None
    return {
        "facts": [(name, _as_text(value)) for name, value in _facts(run) if value not in (None, "")],
        "agent": Agent.objects.filter(address=run.agent).first() if has_spec else None,
        "budget": [] if account is None else _budget(account),
        "input": formats.as_text(payload),
        "output": formats.pretty(run.output, OUTPUT),
    }


def _as_text(value: Any) -> str:
    return formats.moment(value) if isinstance(value, datetime) else str(value)


def _facts(run: Run) -> list[tuple[str, Any]]:
    cancelled = run.cancel_requested_at and f"{formats.moment(run.cancel_requested_at)} · {run.cancel_reason}"
    return [
        ("ID", run.id),
        (gettext("Created"), run.created_at),
        (gettext("Queue time"), run.started_at and formats.between(run.created_at, run.started_at)),
        (gettext("Priority"), run.get_priority_display()),
        (gettext("Tenant"), run.tenant),
        (gettext("Deadline"), run.deadline),
        (gettext("Budget"), formats.as_text(run.budget)),
        (gettext("Metadata"), formats.as_text(run.metadata)),
        (gettext("Waiting for"), formats.as_text(run.waiting_on if run.waits_for else None)),
        (gettext("Not before"), run.wake_at),
        (gettext("Cancellation requested"), cancelled),
        (gettext("Leased by"), run.lease_owner),
        (gettext("Lease ends"), run.lease_expires_at),
        (gettext("Lease epoch"), run.lease_epoch),
        (gettext("Retries of this step"), run.attempts or None),
        (gettext("Crashes"), run.crashes or None),
        (gettext("Times found by the sweep"), run.hints or None),
        (gettext("Generation"), run.generation or None),
        (gettext("Release"), run.release),
        (gettext("Stream published"), run.published_at),
    ]


def _budget(account: BudgetAccount) -> list[tuple[str, list[str]]]:
    """Of each unit: what is spent, reserved and allowed."""
    units = {"tokens": gettext("tokens"), "cost": gettext("cost"), "turns": gettext("maximum model calls")}
    return [
        (name, [_amount(getattr(account, f"{part}_{unit}")) for part in ("spent", "reserved", "max")])
        for unit, name in units.items()
    ]


def _amount(value: int | Decimal | None) -> str:
    if value is None:
        return formats.NONE
    return formats.money(value) if isinstance(value, Decimal) else f"{value:,}"
