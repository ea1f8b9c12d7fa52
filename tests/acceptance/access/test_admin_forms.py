"""What staff may type into the forms of the admin: nothing about other tenants, nor an agent that they may not run."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.models import BudgetAccount, DailyBudget, Delegation, Source
from ravi_django.testing import ScriptedModel
from tests.acceptance.access.world import World, make

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(settings: Any) -> World:
    settings.RAVI = {**settings.RAVI, "TENANT_OF": "tests.acceptance.access.world.tenant_of"}
    return make()


@pytest.fixture
def foreign(world: World) -> Client:
    """Staff of tenant b, with every permission of the app."""
    client = Client()
    client.force_login(world.people["foreign"])
    return client


def test_a_daily_budget_is_of_ones_own_tenants(world: World, foreign: Client) -> None:
    DailyBudget.objects.all().delete()

    for owner, tenant in (("", "a"), ("", ""), ("owner", "")):
        page = foreign.post("/admin/ravi/dailybudget/add/", {"owner": owner, "tenant": tenant, "max_turns": "0"})
        assert (page.status_code, DailyBudget.objects.count()) == (200, 0), (owner, tenant)
    for owner, tenant in (("", "b"), ("foreign", "")):
        foreign.post("/admin/ravi/dailybudget/add/", {"owner": owner, "tenant": tenant, "max_turns": "0"})

    assert DailyBudget.objects.count() == 2
    row = DailyBudget.objects.get(tenant="b")
    foreign.post(f"/admin/ravi/dailybudget/{row.pk}/change/", {"owner": "", "tenant": "a", "max_turns": "0"})
    assert not DailyBudget.objects.filter(tenant="a").exists()


def test_a_daily_budget_is_made_of_a_user_or_a_tenant(admin_client: Client, admin_user: Any) -> None:
    add = "/admin/ravi/dailybudget/add/"

    refused = admin_client.post(add, {"owner": admin_user.username, "tenant": "acme", "max_turns": "-1"})
    made = admin_client.post(add, {"owner": "", "tenant": "acme", "max_turns": "5"})
    BudgetAccount.objects.create(key="tenant:acme:2026-11-22", max_turns=5, spent_turns=2, reserved_turns=1)

    assert (refused.status_code, made.status_code) == (200, 302)
    assert b"not both" in refused.content and b"0 or more" in refused.content
    row = DailyBudget.objects.get()
    assert (row.owner, row.tenant, row.max_turns) == (None, "acme", 5)
    assert b"tenant &#x27;acme&#x27;" in admin_client.get("/admin/ravi/dailybudget/").content
    assert b"2 + 1 of 5" in admin_client.get("/admin/ravi/budgetaccount/").content


def test_the_form_of_a_budget_tells_nobodys_name(world: World, foreign: Client, django_user_model: Any) -> None:
    """Users of other tenants are neither named nor said to exist."""
    zelda = django_user_model.objects.create_user("zelda")
    found = []
    for owner in (zelda.pk, "zelda", "nobody"):
        page = foreign.post("/admin/ravi/dailybudget/add/", {"owner": owner, "tenant": "", "max_turns": "1"})
        found.append(page.content.decode().count("No active user has this name"))
        if owner != "zelda":
            assert "zelda" not in page.content.decode()

    assert found == [1, 1, 1]


def test_the_form_of_a_budget_names_its_owner(world: World) -> None:
    client = Client()
    client.force_login(world.people["root"])
    row = DailyBudget.objects.get()
    page = f"/admin/ravi/dailybudget/{row.pk}/change/"

    type(row.owner).objects.filter(pk=row.owner.pk).update(is_active=False)  # their budget can still be changed
    assert 'value="owner"' in client.get(page).content.decode()
    client.post(page, {"owner": "owner", "tenant": "", "max_turns": "7"})
    row.refresh_from_db()
    assert (row.owner, row.max_turns) == (world.people["owner"], 7)


def test_a_delegation_names_nobody_of_another_tenant(world: World, foreign: Client) -> None:
    Delegation.objects.all().delete()

    for user, delegate in (("clerk", "staff"), ("clerk", "foreign"), ("foreign", "staff")):
        page = foreign.post("/admin/ravi/delegation/add/", {"user": user, "delegate": delegate})
        nobody = foreign.post("/admin/ravi/delegation/add/", {"user": "foreign", "delegate": "no-such-name"})
        assert (page.status_code, Delegation.objects.count()) == (200, 0), (user, delegate)
        assert b"No active user has this name" in page.content and b"No active user" in nobody.content


def test_a_source_tells_an_agent_that_its_owner_may_run(world: World) -> None:
    register(ReActAgent("hidden", model=ScriptedModel([])), access="private")
    clerk = world.people["clerk"]
    clerk.user_permissions.set(clerk.user_permissions.exclude(codename="run_agent"))
    client = Client()
    client.force_login(world.people["root"])
    given = {"owner": "clerk", "name": "mine", "kind": "webhook", "location": "", "agent": "react/hidden"}
    given |= {"signal": "new", "options": "{}", "every_s": "900"}

    page = client.post("/admin/ravi/source/add/", given)

    assert (page.status_code, Source.objects.filter(name="mine").exists()) == (200, False)
    assert page.context["errors"] == [["its owner, clerk, may not run react/hidden"]]


def test_a_search_of_many_words_is_a_short_query(world: World, django_assert_max_num_queries: Any) -> None:
    client = Client()
    client.force_login(world.people["root"])
    for model in world.rows:
        with django_assert_max_num_queries(100) as asked:
            client.get(f"/admin/ravi/{model}/", {"q": "word " * 1_000})
        assert max(len(query["sql"]) for query in asked.captured_queries) < 50_000, model
