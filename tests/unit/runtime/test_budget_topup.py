"""A tree whose budget is used up may ask a person for more, and goes on."""

from decimal import Decimal

import pytest

from ravi_django import answer, register
from ravi_django.kernel import AgentId, BudgetExhaustedError, ConflictError
from ravi_django.models import HumanRequest, JournalEntry, Run, Status
from tests.support import world
from tests.support.budgets import USER, account, balances, lost, model, recorded, spent
from tests.support.cases import case, refused
from tests.support.runs import CodeAgent, asked, code, drive, every_death, make_run
from tests.support.world import retry

pytestmark = pytest.mark.django_db(transaction=True)

CHILD = AgentId("test", "child")
BUDGET = {"max_turns": 2, "when_exhausted": "ask"}


async def thrice(ctx, inbox):
    for made in range(3):
        try:
            await ctx.llm([USER])
        except BudgetExhaustedError as error:
            return f"{made}: {error}"
    return "3"


@pytest.fixture
def talker():
    made = model(10, 0.5)
    code(thrice, model=made)
    return made


@pytest.mark.sqlite
def test_a_tree_without_budget_asks_and_goes_on(talker):
    run = drive(make_run(budget=BUDGET))
    request = asked(run)
    assert (request.kind, request.tool, request.arguments) == ("approval", "budget", {"max_turns": 4})
    assert "2 of max_turns 2" in request.text and f"test/code ({run.id}): 20 tokens, 1 dollars" in request.text
    answer(request.id, "approve", reason="fine")
    run = drive(run)
    assert (run.status, run.output) == (Status.COMPLETED, "3")
    assert (account(run).max_turns, len(talker.calls)) == (4, 3)
    assert balances(run)
    kinds = list(
        JournalEntry.objects.filter(run=run, kind__in=["request.opened", "request.closed"]).values_list(
            "kind", flat=True
        )
    )
    assert kinds == ["request.opened", "request.closed"]


def test_a_persons_own_limit_counts(talker):
    run = drive(make_run(budget={"max_tokens": 15, "max_cost_usd": 1.0, "when_exhausted": "ask"}))
    assert asked(run).arguments == {"max_tokens": 35, "max_cost_usd": 2.0}
    answer(asked(run).id, "edit", arguments={"max_tokens": 100, "max_cost_usd": 1.25})
    run = drive(run)
    assert run.output == "3"
    assert (account(run).max_tokens, account(run).max_cost) == (100, Decimal("1.25"))


def test_a_denial_is_recorded_and_final(talker):
    async def failing(ctx, inbox):
        for _ in range(3):
            await ctx.llm([USER])

    run = drive(make_run(budget=BUDGET))
    request = asked(run)
    answer(request.id, "deny", reason="too dear")
    with pytest.raises(ConflictError):
        answer(request.id, "approve")
    run = drive(run)
    assert run.output.startswith("2: the run has used 2 of its max_turns of 2")
    assert (HumanRequest.objects.count(), account(run).max_turns) == (1, 2)
    assert balances(run)
    code(failing, model=talker)
    run = drive(make_run(budget={"max_turns": 1, "when_exhausted": "ask"}))
    answer(asked(run).id, "deny")
    run = drive(run)
    assert (run.status, run.error["type"]) == (Status.FAILED, "BudgetExhaustedError")
    retry(run.id)
    for limit in (2, 3):
        run = drive(run)
        answer(asked(run).id, "edit", arguments={"max_turns": limit})
    assert drive(run).status == Status.COMPLETED
    assert HumanRequest.objects.filter(run=run).count() == 3
    assert balances(run)


def test_a_worker_that_dies_over_it_asks_once(clock, talker):
    def story(drive_and_die):
        run = drive_and_die(make_run(budget=BUDGET))
        answer(asked(run).id, "approve")
        return drive_and_die(run)

    for run, _ in every_death(clock, story):
        assert (run.output, HumanRequest.objects.count()) == ("3", 1)
        assert balances(run)
        assert recorded(run)[2] == 3 + lost(run)


def test_an_answer_given_before_the_run_could_suspend_is_seen(talker):
    """The lease that has asked is still there when the answer comes."""
    run = make_run(budget=BUDGET)

    def answering(engine):
        refresh = engine.database.call

        async def call(function, *args, **kwargs):
            pending = HumanRequest.objects.filter(status="pending").values_list("id", flat=True)
            if function.__name__ == "write":
                for request_id in await refresh(lambda: list(pending)):
                    await refresh(answer, request_id, "approve")
            return await refresh(function, *args, **kwargs)

        engine.database.call = call

    run = drive(run, setup=answering)
    assert run.status == Status.PENDING
    assert drive(run).output == "3"


@pytest.fixture
def tree(talker):
    """A root that has used its budget's one call, and two children that want to go on."""
    register(CodeAgent(thrice, key="child", model=model(10)))

    async def story(ctx, inbox):
        await ctx.llm([USER])
        handles = [await ctx.spawn(CHILD, "go") for _ in range(2)]
        return [(await ctx.join(handle)).result for handle in handles]

    code(story, model=model(10))
    root = drive(make_run(budget={"max_turns": 1, "when_exhausted": "ask"}))
    return root, *(drive(child) for child in Run.objects.filter(parent=root).order_by("id"))


def test_one_request_a_tree_is_enough(tree):
    root, first, second = tree
    request = asked(first)
    assert HumanRequest.objects.count() == 1
    assert second.waiting_on == [{"kind": "request", "id": str(request.id), "until": None}]
    assert f"Its run {first.id} (test/child) wants to continue" in request.text
    answer(request.id, "edit", arguments={"max_turns": 7})
    assert [Run.objects.get(id=run.id).status for run in tree] == ["suspended", "pending", "pending"]
    assert [drive(run).output for run in (first, second)] == ["3", "3"]
    assert drive(root).output == '["3","3"]'
    assert spent(root)[2] == 7
    assert balances(root)


def test_a_denial_is_told_to_all_that_wait_for_it(tree):
    root, first, second = tree
    answer(asked(first).id, "deny")
    words = f"0: the tree of run {root.id} has used 1 of its max_turns of 1; submit it with a larger budget"
    assert [drive(run).output for run in (first, second)] == [words, words]
    assert HumanRequest.objects.count() == 1


def test_when_the_run_that_asked_is_gone_another_asks(clock, tree):
    """At once; until then it waits without a look: nobody knows how many days a person takes."""
    _, first, second = tree
    assert second.wake_at is None
    assert second.id in world.request_cancel(first.id, "enough")
    second = drive(second)
    assert asked(second).arguments == {"max_turns": 2}
    assert HumanRequest.objects.filter(status="cancelled").count() == 1


def test_who_is_woken_by_the_end_of_a_request_is_locked_in_order(tree, monkeypatch):
    _, first, second = tree
    lock, locked = world.touching_lock, []
    world.patch(monkeypatch, "touching_lock", lambda run_ids: locked.append(set(run_ids)) or lock(run_ids))
    world.request_cancel(first.id, "enough")
    assert locked[-1] >= {first.id, second.id}


def test_an_answer_that_cannot_be_changes_nothing(talker):
    run = drive(make_run(budget=BUDGET))
    for action, given, field in (
        ("answer", {"text": "yes"}, "action"),
        ("deny", {"arguments": {"max_turns": 5}}, "arguments"),
        ("edit", {}, "arguments"),
        ("edit", {"arguments": {}}, "arguments"),
        ("edit", {"arguments": {"max_turns": 2}}, "arguments"),
        ("edit", {"arguments": {"max_turns": -1}}, "arguments"),
        ("edit", {"arguments": {"max_turns": True}}, "arguments"),
        ("edit", {"arguments": {"max_tokens": 50}}, "arguments"),
        ("edit", {"arguments": {"deadline_s": 50}}, "arguments"),
        ("edit", {"arguments": {"max_turns": None}}, "arguments"),
        ("approve", {"arguments": {"max_turns": 5}}, "arguments"),
        ("approve", {"sticky": True}, "sticky"),
        ("deny", {"sticky": True}, "sticky"),
        ("approve", {"text": "yes"}, "text"),
    ):
        with case(action, given):
            with refused(field):
                answer(asked(run).id, action, **given)
            assert (asked(run).status, account(run).max_turns) == ("pending", 2)


def test_a_day_is_not_topped_up(talker, settings, django_user_model):
    settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": {"user": {"max_turns": 1}}}
    run = drive(make_run(owner=django_user_model.objects.create_user("ann"), budget=BUDGET))
    assert run.output.startswith("1: user ")
    assert not HumanRequest.objects.exists()
