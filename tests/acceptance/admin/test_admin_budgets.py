"""Daily budgets are edited by staff who may; accounts are looked at."""

from __future__ import annotations

import pytest
from django.urls import reverse

from ravi_django.models import BudgetAccount, DailyBudget

pytestmark = pytest.mark.django_db


def test_a_daily_budget_is_made_and_changed(admin_client, admin_user):
    add = reverse("admin:ravi_dailybudget_add")

    refused = admin_client.post(add, {"owner": admin_user.username, "tenant": "acme", "max_turns": "-1"})
    made = admin_client.post(add, {"owner": "", "tenant": "acme", "max_turns": "5"})

    assert (refused.status_code, made.status_code) == (200, 302)
    assert b"not both" in refused.content and b"0 or more" in refused.content
    row = DailyBudget.objects.get()
    assert (row.owner, row.tenant, row.max_turns) == (None, "acme", 5)
    assert b"tenant &#x27;acme&#x27;" in admin_client.get(reverse("admin:ravi_dailybudget_changelist")).content


def test_accounts_are_read_only(admin_client):
    account = BudgetAccount.objects.create(key="tenant:acme:2026-11-22", max_turns=5, spent_turns=2, reserved_turns=1)
    page = reverse("admin:ravi_budgetaccount_change", args=[account.pk])

    assert b"2 + 1 of 5" in admin_client.get(reverse("admin:ravi_budgetaccount_changelist")).content
    assert admin_client.get(page).status_code == 200
    assert admin_client.post(page, {"max_turns": 9}).status_code == 403
