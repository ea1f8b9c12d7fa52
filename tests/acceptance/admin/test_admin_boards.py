"""Task boards and requests to people, as an operator sees them."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django import register, tool
from ravi_django.kernel import AgentId, HumanInput, PauseForInputResult
from ravi_django.models import BoardTask, HumanRequest, Run
from tests.support import world
from tests.support.inbox import EVIL, page, words
from tests.support.runs import CodeAgent, asked, code, drive, make_run
from tests.support.tool_calls import calling
from tests.support.world import TaskBoard

pytestmark = pytest.mark.django_db(transaction=True)


def requests_of(html: str) -> str:
    return html[html.index('class="ravi-requests"') :].split("</ul>")[0]


PART = 'id="requests"'  # of a run's page


@pytest.fixture
def busy(transactional_db: None) -> Run:
    """A run that has set itself a task, and asks."""

    async def story(ctx: Any, inbox: Any) -> str:
        await ctx.tool("board_add", title=f"Paint {EVIL}", detail=EVIL)
        told = await ctx.ask_human(f"Which colour? {EVIL}", [f"red {EVIL}", "blue"], context=EVIL)
        return str(told["text"])

    code(story, tools=TaskBoard().tools)
    return drive(make_run())


def test_a_runs_page_shows_its_question_and_the_answer(root: Any, busy: Run, django_user_model: Any) -> None:
    ann = django_user_model.objects.create_superuser("ann")
    address = f"/admin/ravi/run/{busy.pk}/change/"
    html = page(root, address)
    shown = words(html.split(PART)[1])
    for part in ("question", "pending", "Which colour?", "blue", str(asked(busy).id)):
        assert part in shown, part
    assert EVIL not in html

    world.answer(asked(busy).id, text=EVIL, by=ann, reason="why not")
    drive(busy)

    html = page(root, address)
    shown = words(html.split(PART)[1])
    assert "answered" in shown and "by ann" in shown and "why not" in shown
    assert EVIL not in html


def test_the_roots_page_has_the_questions_of_its_tree_and_who_asks(root: Any, transactional_db: None) -> None:
    async def leaf(ctx: Any, inbox: Any) -> None:
        await ctx.ask_human("Which door?")

    async def boss(ctx: Any, inbox: Any) -> Any:
        return (await ctx.ask(AgentId("test", "leaf"), "paint")).kind

    register(CodeAgent(leaf, key="leaf"))
    code(boss)
    run = drive(make_run())
    child = drive(Run.objects.get(parent=run))

    shown = page(root, f"/admin/ravi/run/{run.pk}/change/").split(PART)[1]
    assert "Which door?" in shown
    assert f'from <a href="/admin/ravi/run/{child.pk}/change/">test/leaf</a>' in shown
    assert "from <a" not in page(root, f"/admin/ravi/run/{child.pk}/change/")


def test_what_a_tool_asks_is_shown_with_its_call_and_every_part_of_the_answer(
    root: Any, transactional_db: None, django_user_model: Any
) -> None:
    @tool
    def paint(what: str, told: HumanInput | None = None) -> Any:
        """Paint."""
        asks = {"colour": "Which colour?", "coats": "How many?"}
        return PauseForInputResult(asks, context=f"For Olga. {EVIL}") if told is None else "painted"

    code(calling("paint", what="door"), tools=[paint])
    run = drive(make_run())
    address = f"/admin/ravi/run/{run.pk}/change/"

    shown = words(requests_of(page(root, address)))

    for part in ("input", "paint", "colour: Which colour?", "For Olga.", "&quot;what&quot;: &quot;door&quot;"):
        assert part in shown, part
    for name in ("free_text", "questions"):
        assert name not in shown
    world.answer(asked(run).id, values={"colour": f"red {EVIL}", "coats": "twice"}, reason="as agreed")
    drive(run)
    html = page(root, address)
    for part in ("answer", "colour: red", "coats: twice", "as agreed"):
        assert part in words(requests_of(html)), part
    assert EVIL not in html


def test_every_kind_of_request_and_answer_is_shown(root: Any, busy: Run) -> None:
    uncertain = {"kind": "uncertain", "tool": "send", "arguments": {"to": EVIL}}
    budget = {"kind": "approval", "tool": "budget", "arguments": {"max_turns": 4}}
    for fields, answer, shown in (
        (uncertain, {"action": "resolve", "outcome": "run_again"}, "resolve: run again"),
        (budget, {"action": "edit", "arguments": {"max_turns": 7}}, "edit: max_turns: 7"),
    ):
        HumanRequest.objects.update(**fields, answer=answer)
        html = page(root, f"/admin/ravi/run/{busy.pk}/change/")
        assert fields["kind"] in html and shown in html and EVIL not in html, fields


def test_a_sessions_page_shows_its_board(root: Any, busy: Run) -> None:
    html = page(root, f"/admin/ravi/session/{busy.session_id}/change/")

    shown = words(html).split("Task board")[1]
    assert "test/code" in shown and "todo" in shown and "Paint" in shown
    assert EVIL not in html


def test_boards_are_listed_searched_and_shown(operator: Any, busy: Run) -> None:
    staff = operator("view_boardtask")
    task = BoardTask.objects.get()
    other = make_run()
    world.board_add(world.Place(other.session_id, "test/other", "", "", other.id), "Something else")

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
        world.board_add(world.Place(busy.session_id, "test/code", "", "", busy.id), f"Task {number}")

    with django_assert_max_num_queries(6):
        page(root, "/admin/ravi/boardtask/")
