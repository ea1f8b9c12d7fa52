"""Task boards and requests to people, as an operator sees them."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django import register
from ravi_django.kernel import AgentId
from ravi_django.models import BoardTask, Run
from tests.support import world
from tests.support.inbox import EVIL, page, words
from tests.support.runs import CodeAgent, code, drive, make_run
from tests.support.world import TaskBoard

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def busy(transactional_db: None) -> Run:
    """A run that has set itself a task, and asks."""

    async def story(ctx: Any, inbox: Any) -> str:
        await ctx.tool("board_add", title=f"Paint {EVIL}", detail=EVIL)
        told = await ctx.ask_human(f"Which colour? {EVIL}", [f"red {EVIL}", "blue"], context=EVIL)
        return str(told["text"])

    code(story, tools=TaskBoard().tools)
    return drive(make_run())


def test_a_runs_page_leads_to_the_requests_of_its_tree(root: Any, transactional_db: None) -> None:
    async def leaf(ctx: Any, inbox: Any) -> None:
        await ctx.ask_human(f"Which door? {EVIL}")

    async def boss(ctx: Any, inbox: Any) -> Any:
        return (await ctx.ask(AgentId("test", "leaf"), "paint")).kind

    register(CodeAgent(leaf, key="leaf"))
    code(boss)
    run = drive(make_run())
    child = drive(Run.objects.get(parent=run))

    for one in (run, child):
        html = page(root, f"/ravi/ui/runs/{one.pk}/")
        assert html.count('class="waits"') == 1 and EVIL not in html
        address = f"/admin/ravi/humanrequest/?status=all&q={one.pk}"
        assert address.replace("&", "&amp;") in html and "Which door?" in page(root, address)


def test_a_sessions_page_shows_its_board(root: Any, busy: Run) -> None:
    html = page(root, f"/admin/ravi/session/{busy.session_id}/change/")

    shown = words(html).split("Task board")[1]
    assert "test/code" in shown and "todo" in shown and "Paint" in shown
    assert EVIL not in html


def test_boards_are_listed_searched_and_shown(operator: Any, busy: Run) -> None:
    staff = operator("view_boardtask")
    task = BoardTask.objects.get()
    other = make_run()
    world.board_add(world.BoardKey(other.session_id, "test/other", "", "", other.id), "Something else")

    html = page(staff, "/admin/ravi/boardtask/")
    assert "Paint" in html and "Something else" in html and EVIL not in html
    for term in ("Paint", "test/code", str(busy.session_id)):
        found = page(staff, f"/admin/ravi/boardtask/?q={term}")
        assert "Paint" in found and "Something else" not in found
    assert "Something else" not in page(staff, "/admin/ravi/boardtask/?status__exact=done")
    html = page(staff, f"/admin/ravi/boardtask/{task.pk}/change/")
    assert "Paint" in html and EVIL not in html and 'name="_save"' not in html


def test_a_list_costs_as_many_queries_for_many_as_for_one(root: Any, busy: Run, django_assert_max_num_queries: Any):
    for number in range(20):
        world.board_add(world.BoardKey(busy.session_id, "test/code", "", "", busy.id), f"Task {number}")

    with django_assert_max_num_queries(6):
        page(root, "/admin/ravi/boardtask/")
