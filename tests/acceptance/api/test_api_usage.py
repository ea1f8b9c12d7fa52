"""GET usage/ and usage/today/."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from ravi_django.models import BudgetAccount, DailyBudget, Run, Session, Status, first_id_of, uuid7
from tests.acceptance.api.api_support import client_of, error_of

pytestmark = pytest.mark.django_db


def used(owner: Any, agent: str = "react/a", *, days_ago: float = 0, **fields: Any) -> Run:
    """A run of that time with 10 tokens in, 4 of them cached, 2 out, for a quarter of a dollar."""
    made = datetime.now(UTC) - timedelta(days=days_ago)
    run_id = UUID(int=first_id_of(made).int | (uuid7().int & (2**80 - 1)))
    values: dict[str, Any] = {
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 2,
        "cost": Decimal("0.25"),
        "status": Status.COMPLETED,
        **fields,
    }
    session = Session.objects.create(owner=owner)
    return Run.objects.create(id=run_id, agent=agent, session=session, owner=owner, created_at=made, **values)


def groups(client: APIClient, query: str = "") -> dict[str | None, dict[str, Any]]:
    response = client.get(f"/ravi/usage/?{query}")
    assert response.status_code == 200, response.json()
    page = response.json()
    assert set(page) == {"next", "previous", "results"}
    return {row.pop("key"): row for row in page["results"]}


def runs_of(client: APIClient, query: str = "") -> dict[str | None, int]:
    return {key: row["runs"] for key, row in groups(client, query).items()}


def test_what_each_agent_has_used(client: APIClient, user: Any) -> None:
    used(user)
    used(user, output_tokens=3, reasoning_tokens=1)
    used(user, "react/b", tenant="acme")

    names = ("runs", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost", "cost_known")
    figures = {"react/a": (2, 20, 8, 5, 1, 0.5, 0.5), "react/b": (1, 10, 4, 2, 0, 0.25, 0.25)}
    assert groups(client) == {
        agent: {"name": agent, **dict(zip(names, numbers, strict=True))} for agent, numbers in figures.items()
    }
    assert runs_of(client, "agent=react/b&by=tenant") == {"acme": 1}
    assert runs_of(client, "agent=react/c") == {}


def test_an_unknown_price_is_not_zero(client: APIClient, user: Any) -> None:
    used(user)
    used(user, cost_unknown=True)
    used(user, "react/known")

    found = groups(client)

    assert (found["react/a"]["cost"], found["react/a"]["cost_known"]) == (None, 0.5)
    assert (found["react/known"]["cost"], found["react/known"]["cost_known"]) == (0.25, 0.25)


def test_it_sums_up_by_tenant_user_tree_and_day(client: APIClient, user: Any) -> None:
    root = used(user, tenant="acme", days_ago=1)
    child = used(user, "react/b", tenant="acme", root=root, parent=root, depth=1)
    used(user)
    days = [str((datetime.now(UTC) - timedelta(days=ago)).date()) for ago in (0, 1)]

    assert runs_of(client, "by=tenant") == {"": 1, "acme": 2}
    assert runs_of(client, "by=user") == {str(user.pk): 3}
    assert groups(client, "by=user")[str(user.pk)]["name"] == "ann"
    assert list(runs_of(client, "by=day").items()) == [(days[0], 2), (days[1], 1)]  # the newest first
    trees = groups(client, "by=tree")
    assert (trees[str(root.id)]["runs"], trees[str(root.id)]["name"]) == (2, "react/a")
    assert str(child.id) not in trees
    assert len(trees) == 2


def test_a_span_is_what_was_made_in_it(client: APIClient, user: Any) -> None:
    for ago in (0, 10, 29, 31, 300):
        used(user, days_ago=ago)

    def count(query: str) -> int:
        return sum(runs_of(client, query).values())

    def day(ago: int) -> str:
        return str((datetime.now(UTC) - timedelta(days=ago)).date())

    assert count("") == 3  # thirty days
    assert count(f"since={day(40)}") == 4
    assert count(f"since={day(301)}") == 5
    assert count(f"since={day(301)}&until={day(20)}") == 3
    assert count(f"since={day(11)}T00:00:00Z&until={day(9)}T00:00:00%2B00:00") == 1
    assert count(f"until={day(290)}") == 1


def test_everybody_sees_what_is_theirs(client, strange_client, user, stranger, admin_user, django_user_model) -> None:
    used(user, tenant="acme")
    used(stranger)
    used(None)
    staff = django_user_model.objects.create_user("clerk", is_staff=True)

    assert runs_of(client, "by=user") == {str(user.pk): 1}
    assert runs_of(client, "by=tenant") == {"acme": 1}
    assert runs_of(strange_client, "by=tenant") == {"": 1}
    assert runs_of(client_of(staff), "by=user") == {}
    assert runs_of(client_of(admin_user), "by=user") == {str(user.pk): 1, str(stranger.pk): 1, None: 1}


@pytest.mark.parametrize("by", ["agent", "tenant", "user", "tree", "day"])
def test_it_comes_in_pages_at_a_fixed_number_of_queries(by: str, admin_user: Any, django_user_model: Any) -> None:
    for number in range(5):
        owner = django_user_model.objects.create_user(f"u{number}")
        used(owner, f"react/a{number}", tenant=f"t{number}", days_ago=number)
    client = client_of(admin_user)

    seen, address, counts = [], f"/ravi/usage/?by={by}&limit=2", set()
    while address:
        with CaptureQueriesContext(connection) as queries:
            page = client.get(address).json()
        counts.add(len(queries))
        seen += [row["key"] for row in page["results"]]
        back, address = page["previous"], page["next"]

    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen, reverse=by in ("tree", "day"))
    assert counts == {2 if by in ("user", "tree") else 1}
    assert [row["key"] for row in client.get(back).json()["results"]] == seen[2:4]


def test_a_bad_question_names_what_to_mend(client: APIClient) -> None:
    for query, field in (
        *((f"by={bad}", "by") for bad in ("colour", "")),
        *((f"since={bad}", "since") for bad in ("", "yesterday", "2026-13-01", "2026-02-30T00:00:00Z", "12", "%00")),
        *((f"until={bad}", "until") for bad in ("now", "0001-01-01", "1950-01-01", "2026-01-01T99:00")),
        *((f"since={bad}", "since") for bad in ("2026-02-02&until=2026-02-01", "2024-01-01&until=2026-01-01")),
        *(("since=2199-01-01", "since"), ("agent=nonsense", "agent"), ("agent=a/%00", "agent"), ("limit=0", "limit")),
        *(("cursor=nonsense", "cursor"), ("by=tree&cursor=cD1ub25zZW5zZQ==", "cursor")),  # p=nonsense
    ):
        response = client.get(f"/ravi/usage/?{query}")
        assert (response.status_code, error_of(response)["field"]) == (400, field), query
    response = client.get("/ravi/usage/today/?tenant=%00")
    assert (response.status_code, error_of(response)["field"]) == (400, "tenant")


# ------------------------------------------------------------------------------------------------- the day


def account(key: str, **fields: Any) -> None:
    BudgetAccount.objects.create(key=f"{key}:{datetime.now(UTC).date()}", **fields)


def test_what_is_left_of_ones_day(client: APIClient, user: Any, stranger: Any) -> None:
    account(f"user:{user.pk}", max_tokens=1000, spent_tokens=200, spent_turns=3, reserved_tokens=50)
    account(f"user:{stranger.pk}", spent_tokens=7)

    found = client.get("/ravi/usage/today/").json()

    assert found == {
        "day": str(datetime.now(UTC).date()),
        "user": {
            "limits": {"max_tokens": 1000, "max_cost_usd": None, "max_turns": None},
            "spent": {"tokens": 200, "cost": 0.0, "turns": 3},
            "reserved": {"tokens": 50, "cost": 0.0, "turns": 0},
        },
        "tenant": None,
    }


def test_limits_are_shown_before_anything_is_spent(client: APIClient, user: Any, settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": {"user": {"max_tokens": 10}, "tenant": {"max_cost_usd": 2.5}}}

    used(user)

    found = client.get("/ravi/usage/today/").json()
    DailyBudget.objects.create(owner=user, max_turns=7)
    edited = client.get("/ravi/usage/today/").json()

    nothing = {"tokens": 0, "cost": 0.0, "turns": 0}
    assert found["user"]["limits"] == {"max_tokens": 10, "max_cost_usd": None, "max_turns": None}
    assert found["tenant"]["limits"] == {"max_tokens": None, "max_cost_usd": 2.5, "max_turns": None}
    assert found["user"]["spent"] == found["user"]["reserved"] == nothing
    assert edited["user"]["limits"] == {"max_tokens": None, "max_cost_usd": None, "max_turns": 7}


def test_a_tenants_day_is_for_those_who_have_runs_in_it(client, strange_client, user, stranger, admin_user) -> None:
    used(user, tenant="acme")
    used(user)
    used(stranger, tenant="other")
    account("tenant:acme", max_turns=5)
    account("tenant:", max_turns=7)

    for query, turns in (("?tenant=acme", 5), ("?tenant=", 7)):
        found = [one.get(f"/ravi/usage/today/{query}") for one in (client, client_of(admin_user), strange_client)]
        assert [response.status_code for response in found] == [200, 200, 404], query
        assert all(response.json()["tenant"]["limits"]["max_turns"] == turns for response in found[:2])
        assert error_of(found[2])["code"] == "not_found"
    assert client.get("/ravi/usage/today/").json()["tenant"]["limits"]["max_turns"] == 7
    assert strange_client.get("/ravi/usage/today/").json()["tenant"] is None
