"""GET runs/{id}/tree/: what a team has done, used and may still use."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django.models import BudgetAccount, Run, Session, Status, uuid7
from tests.acceptance.api.api_support import error_of
from tests.support.cases import queries_of
from tests.support.world import submit

pytestmark = pytest.mark.django_db


def team(user: Any, agent: str, *, size: int, deep: int = 5) -> Run:
    """A root with `size - 1` runs below it, no deeper than `deep`."""
    root = submit(agent, "hi", user=user)
    levels: list[list[Run]] = [[root], *([] for _ in range(deep - 1))]
    sessions, runs = [], []
    for number in range(size - 1):
        depth = 1 + number % (deep - 1)
        parent = levels[depth - 1][number % len(levels[depth - 1])]
        session = Session(id=uuid7(), owner=user)
        run = Run(
            agent=agent, session=session, owner=user, parent=parent, root=root, depth=depth, status=Status.COMPLETED,
            output="x" * 500, input_tokens=10, cached_tokens=4, output_tokens=2, cost=Decimal("0.5"),
        )  # fmt: skip
        sessions.append(session)
        runs.append(run)
        levels[depth].append(run)
    Session.objects.bulk_create(sessions)
    Run.objects.bulk_create(runs)
    return root


def tree_of(client: APIClient, run: Run) -> dict[str, Any]:
    response = client.get(f"/ravi/runs/{run.id}/tree/")
    assert response.status_code == 200
    return dict(response.json())


def flat(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for child in node["children"] for below in flat(child))]


def test_the_root_tells_what_the_whole_tree_has_used(client: APIClient, user: Any, agent: str) -> None:
    root = team(user, agent, size=4)
    Run.objects.filter(id=root.id).update(input_tokens=5, output_tokens=1, cost=Decimal("0.25"))
    last = Run.objects.filter(root=root).latest("id")

    tree = tree_of(client, last)

    used = {"input_tokens": 35, "cached_tokens": 12, "output_tokens": 7, "cost": 1.75, "cost_known": 1.75}
    used["estimated"] = False
    assert tree["id"] == str(root.id)
    assert tree["tree"] == {"runs": 4, "live": 1, "usage": used, "budget": None}
    assert all("tree" not in child for child in flat(tree)[1:])
    Run.objects.filter(root=root).update(output="x" * 5_000)
    Run.objects.filter(id=last.id).update(cost_unknown=True)
    tree = tree_of(client, root)
    assert {len(child["output"]) for child in flat(tree)[1:]} == {1_000}
    assert (tree["tree"]["usage"]["cost"], tree["tree"]["usage"]["cost_known"]) == (None, 1.75)


def test_a_run_that_awaits_a_slot_is_pending_and_says_so(client: APIClient, user: Any, agent: str) -> None:
    root = team(user, agent, size=2)
    child = Run.objects.get(root=root)
    waits = [{"kind": "signal", "name": "go", "until": None}]
    slot = {"kind": "slot", "name": "", "until": None}
    for status, awaits, waiting_on in ((Status.SUSPENDED, False, waits[0]), (Status.PENDING, True, slot)):
        Run.objects.filter(id=child.id).update(status=status, waiting_on=waits, awaits_slot=awaits)

        for shown in (client.get(f"/ravi/runs/{child.id}/").json(), tree_of(client, root)["children"][0]):
            assert (shown["status"], shown["waiting_on"]) == (status, waiting_on)


def test_a_budget_says_what_is_spent_and_reserved(client: APIClient, user: Any, agent: str) -> None:
    root = submit(agent, "hi", user=user)
    BudgetAccount.objects.update_or_create(
        key=f"tree:{root.id}",
        defaults={
            "max_tokens": 100,
            "max_cost": Decimal("1.5"),
            "spent_tokens": 30,
            "spent_cost": Decimal("0.1"),
            "spent_turns": 2,
            "reserved_tokens": 7,
            "reserved_turns": 1,
        },
    )

    assert tree_of(client, root)["tree"]["budget"] == {
        "limits": {"max_tokens": 100, "max_cost_usd": 1.5, "max_turns": None},
        "spent": {"tokens": 30, "cost": 0.1, "turns": 2},
        "reserved": {"tokens": 7, "cost": 0.0, "turns": 1},
    }


def test_five_hundred_runs_cost_as_many_queries_as_three(client: APIClient, user: Any, agent: str) -> None:
    small, large = team(user, agent, size=3), team(user, agent, size=500)

    assert [queries_of(lambda root=root: tree_of(client, root)) for root in (small, large)] == [2, 2]
    tree = tree_of(client, large)
    nodes = flat(tree)
    assert len(nodes) == tree["tree"]["runs"] == 500
    assert max(node["depth"] for node in nodes) == 4
    assert all(child["parent"] == node["id"] for node in nodes for child in node["children"])
    assert all(node["children"] == sorted(node["children"], key=lambda child: child["id"]) for node in nodes)


def test_a_line_of_children_is_shown_however_long_it_is(client: APIClient, user: Any, agent: str) -> None:
    root = team(user, agent, size=200, deep=200)

    node, depth = tree_of(client, root), 0
    while node["children"]:
        (node,) = node["children"]
        depth += 1

    assert depth == 199


def test_a_tree_is_its_owners(client: APIClient, strange_client: APIClient, user: Any, agent: str) -> None:
    root = team(user, agent, size=3)
    child = Run.objects.filter(root=root).latest("id")

    for run in (root, child):
        response = strange_client.get(f"/ravi/runs/{run.id}/tree/")
        assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    assert len(flat(tree_of(client, child))) == 3
