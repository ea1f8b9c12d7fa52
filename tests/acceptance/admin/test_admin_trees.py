"""A team on the page of a run and in the list of runs."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from ravi_django.models import BudgetAccount, Run, Session, Status, uuid7
from tests.support import world
from tests.support.cases import queries_of
from tests.support.inbox import html_of, words
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db(transaction=True)


USED = {"input_tokens": 1000, "cached_tokens": 900, "output_tokens": 10, "cost": Decimal("0.5")}


def child_of(parent: Run, root: Run, agent: str = "test/hand", **fields: Any) -> Run:
    session = world.create_session(Session(agent=agent))
    return Run.objects.create(
        id=uuid7(), agent=agent, session=session, parent=parent, root=root, depth=parent.depth + 1,
        **(USED | {"status": Status.COMPLETED} | fields),
    )  # fmt: skip


def page(client: Any, run: Run) -> str:
    return html_of(client.get(f"/ravi/ui/runs/{run.pk}/"))


def team() -> tuple[Run, Run, Run, Run]:
    root = make_run("test/boss")
    one, two = child_of(root, root, "test/one"), child_of(root, root, "test/two", status=Status.SUSPENDED)
    return root, one, two, child_of(one, root, "test/deep")


def test_every_run_of_a_tree_shows_all_of_it_parents_first(root: Any) -> None:
    runs = team()

    for run in runs:
        html = page(root, run)
        assert re.search("test/boss.*test/one.*test/deep.*test/two.*suspended", html, re.S)
        assert "3,000 → 30 (90 % cached)" in html and "$1.50" in html
        assert re.findall(r'class="what d(\d)" role="rowheader"><a href="../', html) == ["0", "1", "2", "1"]
        assert re.findall(r'href="../([^/]+)/" aria-current="page"', html) == [str(run.id)]


def test_the_trees_budget_is_shown(root: Any) -> None:
    run = make_run()
    BudgetAccount.objects.create(
        key=f"tree:{run.id}", max_tokens=5000, spent_tokens=1234, reserved_tokens=50, spent_cost=Decimal("0.25")
    )

    text = words(page(root, run))

    assert "tokens 1,234 50 5,000" in text
    assert "cost $0.25 $0 —" in text


def test_a_big_tree_costs_as_many_queries_as_a_small_one(root: Any) -> None:
    small = team()[0]
    big = make_run()
    for _ in range(30):
        child_of(big, big)

    page(root, small)
    assert queries_of(lambda: page(root, big)) == queries_of(lambda: page(root, small))
    assert page(root, big).count('class="what d1"') == 30


def test_the_list_is_of_roots_or_of_children(root: Any) -> None:
    boss, *others = team()

    def found(query: str) -> set[str]:
        html = root.get(f"/admin/ravi/run/?{query}").content.decode()
        return {str(run.pk) for run in (boss, *others) if f"/admin/ravi/run/{run.pk}/change/" in html}

    assert found("place=root") == {str(boss.pk)}
    assert found("place=child") == {str(run.pk) for run in others}
    assert len(found("")) == 4
