"""The limits of a provider's account are shared by all processes, and its permits go out in turn."""

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest
from django.contrib.auth import get_user_model
from django.db.models import Sum
from django.utils import timezone

from ravi_django import RunContext, register, tool
from ravi_django.calls.llm.fallback import FallbackModel
from ravi_django.kernel import AgentId, ChatMessage, TransientError
from ravi_django.models import ModelLimit, Rollup, Run, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")


@pytest.fixture(autouse=True)
def suspends_at_once(monkeypatch):
    world.patch(monkeypatch, "PROVIDERS_MEMORY_S", 0.0)


@pytest.fixture
def limited(settings):
    def set_limits(**table):
        settings.RAVI = {**settings.RAVI, "MODEL_LIMITS": {"test/*": table}}

    return set_limits


class Model(ScriptedModel):
    """Its calls begin with the answers, and its name is under the limit."""

    def __init__(self, name="test/one", **fields):
        super().__init__(["hello"] * 100, name=name, **fields)


async def ask(ctx, inbox):
    return (await ctx.llm([USER])).text


def limit_of(model, tenant=""):
    return world.limit_of_model(model, tenant)


def model_call(run):
    return next(row for row in journal_of(run) if row.kind == "llm.call")


@pytest.mark.sqlite
def test_runs_above_a_rate_wait_suspended_and_each_is_woken_once_when_its_call_may_be_sent(clock, limited):
    limited(requests_per_min=60)
    code(ask, model=Model())
    runs = [make_run() for _ in range(16)]
    at_once = [run for run in runs if drive(run).status == Status.COMPLETED]
    waiting = [run for run in runs if run not in at_once]
    assert 5 <= len(at_once) <= 10  # the half that asks nobody, and the burst
    assert {run.wake_at for run in waiting} == {None}  # a permit wakes them, no time
    woken = []
    for _ in range(60):
        woken += [drive(Run.objects.get(id=run_id)) for run_id in world.permits_grant()]
        clock.advance(1)
    assert {run.id for run in woken} == {run.id for run in waiting}
    assert [run.status for run in woken] == [Status.COMPLETED] * len(waiting)
    kinds = [[row.kind for row in journal_of(run)].count("run.suspended") for run in woken]
    assert kinds == [1] * len(waiting)
    spread = [run.finished_at for run in woken]
    assert (max(spread) - min(spread)).total_seconds() >= len(waiting) - 3
    waited = [row.request.get("waited_s", 0.0) for row in map(model_call, woken)]
    assert max(waited) >= len(waiting) - 3
    world.rollups_sweep()
    day = Rollup.objects.filter(span="day", model="test/one").aggregate(Sum("waited_s"))
    assert day == {"waited_s__sum": pytest.approx(sum(waited))}


def test_permits_go_by_priority_then_by_owner_in_turn_then_to_the_oldest_tree_and_its_parent_first(clock, limited):
    limited(requests_per_min=60)
    code(ask, model=Model())
    row = ModelLimit.objects.create(key="k", name="test/*", waiting=9)
    ada, bob = (get_user_model().objects.create_user(name) for name in ("ada", "bob"))
    for_limit = {"status": Status.SUSPENDED, "model_limit": row}
    names = {}

    def waiting(name, **fields):
        run = make_run()
        Run.objects.filter(id=run.id).update(**for_limit, **fields)
        names[run.id] = name
        return run

    first = waiting("ada's first", owner=ada)
    waiting("ada's second", owner=ada)
    waiting("ada's child of the first", owner=ada, root=first, parent=first, depth=1)
    waiting("bob's", owner=bob)
    waiting("urgent", owner=ada, priority=8)
    order = []
    for _ in range(40):
        order += [names[run_id] for run_id in world.permits_grant()]
        ModelLimit.objects.update(next_at=clock.now + timedelta(seconds=4))  # one permit at a time
        clock.advance(1)
    assert order == ["urgent", "ada's first", "bob's", "ada's child of the first", "ada's second"]


def test_so_many_calls_are_open_at_once(clock, limited):
    limited(at_once=2)
    most, now_open = [], []

    class Slow(Model):
        async def stream(self, messages, options, meta):
            now_open.append(1)
            most.append(len(now_open))
            await asyncio.sleep(0.05)
            now_open.pop()
            async for event in super().stream(messages, options, meta):
                yield event

    async def story(ctx, inbox):
        await asyncio.gather(*(ctx.llm([USER]) for _ in range(6)))

    code(story, model=Slow())
    run = make_run()
    while drive(run).status == Status.SUSPENDED:
        assert world.permits_grant() == [run.id]
    assert (run.status, max(most)) == (Status.COMPLETED, 2)


def test_a_request_above_the_tokens_of_a_minute_waits(clock, limited):
    limited(tokens_per_min=600)
    code(ask, model=Model())
    runs = [make_run(text="hi") for _ in range(3)]
    limit = limit_of(Model(), "")
    limit.begin(100.0)
    limit.open = 0
    limit.debt = 1_000.0  # earlier answers had more tokens than was reserved
    assert drive(runs[0]).status == Status.COMPLETED
    assert drive(runs[1]).status == Status.SUSPENDED
    clock.advance(120)
    assert world.permits_grant() == [runs[1].id]


def test_a_model_at_its_limit_is_passed_over_if_the_wait_is_longer_than_fallback_after(clock):
    busy, spare = Model("busy"), Model("spare")
    ModelLimit.objects.create(key=limit_of(busy).key, name="busy", paused_until=clock.now + timedelta(seconds=90))
    world.limits_refresh()
    code(ask, model=FallbackModel([busy, spare], fallback_after=60))
    assert drive(make_run()).output == "hello"
    assert (len(busy.calls), len(spare.calls)) == (0, 1)
    code(ask, model=FallbackModel([busy, spare], fallback_after=110))
    assert drive(make_run()).status == Status.SUSPENDED


def test_a_refusal_inside_a_fallback_list_pauses_that_model_for_all(clock):
    def refuse(messages, options):
        raise TransientError("slow down", status=429, retry_after=300)

    first = ScriptedModel([refuse] * 9, name="first")
    code(ask, model=FallbackModel([first, Model("second")]))
    assert [drive(make_run()).output for _ in range(2)] == ["hello", "hello"]
    assert (len(first.calls), ModelLimit.objects.get().name) == (1, "first")


def test_a_pause_by_a_person_holds_calls_back_and_fails_none(clock, settings):
    settings.RAVI = {**settings.RAVI, "PROVIDER_WAIT_S": 1.0}
    model = Model("test/paused")
    code(ask, model=model)
    row = ModelLimit.objects.create(
        key=limit_of(model).key,
        name=model.name,
        paused_until=clock.now + timedelta(hours=5),
        paused_by="ada",
        refusing_since=clock.now - timedelta(hours=1),
    )
    world.limits_refresh()
    run = drive(make_run())
    assert (run.status, run.waiting_on[0]["until"]) == (Status.SUSPENDED, "2030-01-01T05:00:00.000Z")
    assert world.permits_grant() == []
    assert "test/paused is paused by ada: 1 runs wait" in next(world.diagnose_model_limits()).what
    clock.advance(5 * 3600)
    row.refusing_since = None  # as the form does
    row.save(update_fields=["refusing_since"])
    assert world.permits_grant() == [run.id]
    assert drive(run).output == "hello"


def test_a_tenant_has_limits_of_its_own_by_pattern(settings):
    settings.RAVI = {**settings.RAVI, "MODEL_LIMITS": {"test/*": {"at_once": 9}, "test/{tenant}-*": {"at_once": 1}}}
    ours, theirs = (
        limit_of(Model("test/acme-gpt"), "acme"),
        limit_of(Model("test/acme-gpt"), "other"),
    )
    assert (ours.tenant, ours.room, theirs.tenant, theirs.room) == ("acme", 1, "", 9)
    assert limit_of(Model("test/b"), "acme") is limit_of(Model("test/a"), "other") is theirs


def test_refusals_lower_the_rate_once_in_a_round_trip_and_answers_raise_it(clock):
    limit, now = limit_of(Model("m"), ""), clock.now
    for _ in range(40):
        limit.begin(1.0)
    for _ in range(5):
        world.limit_refuse(limit, now, now, 0.0, 1.0, limit.taken_without_refused())
    row = ModelLimit.objects.get()
    learned = row.learned_per_min
    assert row.refused == 5 and 0.8 * 60 * 39 < learned <= 0.9 * 60 * 39 * 2
    world.limit_refuse(limit, now + timedelta(seconds=2), now + timedelta(seconds=1), 0.0, 1.0, None)
    lower = ModelLimit.objects.get().learned_per_min
    assert 0.4 * learned < lower <= 0.9 * learned
    world.limit_answered(limit, now + timedelta(seconds=3))
    assert ModelLimit.objects.get().learned_per_min == lower
    rates = [lower]
    for seconds in (9, 15, 21):
        world.limit_answered(limit, now + timedelta(seconds=seconds))
        rates.append(ModelLimit.objects.get().learned_per_min)
    rises = [after / before for before, after in pairwise(rates)]
    assert 1.0 < rises[0] < rises[1] < rises[2] < 1.1


def test_of_processes_that_are_refused_at_once_the_highest_rate_counts(clock):
    limit, now = limit_of(Model("m"), ""), clock.now
    for taken in (20.0, 60.0, 40.0):
        world.limit_refuse(limit, now, now, 0.0, 1.0, (taken, 10.0))
    assert ModelLimit.objects.get().learned_per_min == pytest.approx(0.9 * 6 * 60)


def test_the_time_at_a_limit_is_added_to_an_asks_timeout(clock):
    model = Model("slow/one")
    code(ask, model=model)
    limit = limit_of(model, "")
    world.limit_refuse(limit, clock.now, clock.now, 600.0, 1.0, None)

    class Asker:
        id = AgentId("test", "asker")

        async def run(self, ctx, inbox):
            return (await ctx.ask("test/code", "hi", timeout=60)).kind

    register(Asker(), replace=True)
    asker = make_run("test/asker")
    drive(asker)
    child = Run.objects.get(parent=asker)
    assert drive(child).status == Status.SUSPENDED
    clock.advance(300)
    assert drive(asker).status == Status.SUSPENDED  # its timeout is over, and the child still waits
    clock.advance(301)
    assert world.permits_grant() == [child.id]
    assert drive(child).status == Status.COMPLETED
    assert drive(asker).output == "replied"


def test_a_run_whose_worker_died_before_it_counted_is_found_by_the_sweep(clock):
    row = ModelLimit.objects.create(key="k", name="m")
    run = make_run()
    Run.objects.filter(id=run.id).update(status=Status.SUSPENDED, model_limit=row)
    assert world.permits_grant() == []
    world.permits_recount()
    assert world.permits_grant() == [run.id]


ROW = "/admin/ravi/modellimit/"


def test_only_people_with_the_permission_see_and_set_limits(client, django_user_model, admin_client):
    row = ModelLimit.objects.create(key="k", name="openai/*", learned_per_min=42, waiting=3)
    staff = django_user_model.objects.create_user("clerk", is_staff=True)
    client.force_login(staff)
    assert client.get(ROW).status_code == 403
    assert client.post(f"{ROW}{row.id}/change/", {"at_once": 1}).status_code == 403
    page = admin_client.get(ROW).content.decode()
    assert "openai/*" in page and "42 a minute, learned" in page and "key" not in page.partition("<table")[2]
    until = timezone.now() + timedelta(hours=1)
    fields = {"paused_until_0": f"{until:%Y-%m-%d}", "paused_until_1": f"{until:%H:%M:%S}", "at_once": "7"}
    assert admin_client.post(f"{ROW}{row.id}/change/", fields).status_code == 302
    row.refresh_from_db()
    assert (row.at_once, row.paused_by) == (7, "admin")
    assert b"by admin until" in admin_client.get(ROW).content
    assert admin_client.post(f"{ROW}{row.id}/change/", {"at_once": "0"}).status_code == 200


def paused(model, clock, seconds):
    row, _ = ModelLimit.objects.update_or_create(
        key=limit_of(model).key, defaults={"name": model.name, "paused_until": clock.now + timedelta(seconds=seconds)}
    )
    world.limits_refresh()
    return row


def fail(messages, options):
    raise TransientError("broken", status=500)


def test_a_failure_behind_a_model_that_was_passed_over_counts_as_an_attempt(clock):
    busy, broken = Model("busy"), ScriptedModel([fail] * 9, name="broken")
    paused(busy, clock, 900)
    code(ask, model=FallbackModel([busy, broken]))
    run = drive(make_run())
    assert (run.status, run.attempts, len(broken.calls)) == (Status.PENDING, 1, 1)


def test_a_tool_that_times_out_while_it_waits_gives_its_place_back(clock, limited, monkeypatch):
    world.patch(monkeypatch, "PROVIDERS_MEMORY_S", 15.0)
    limited(requests_per_min=60, at_once=5)
    model = Model("test/slow")
    paused(model, clock, 10)

    @tool(timeout=0.05)
    async def summarize(ctx: RunContext) -> str:
        return (await ctx.llm([USER], model=model)).text

    async def story(ctx, inbox):
        return (await ctx.tool("summarize")).text

    code(story, tools=[summarize])
    drive(make_run())
    assert limit_of(model).open == 0


def test_a_permit_is_for_one_lease(clock):
    model = ScriptedModel([fail, "hello"], name="m")
    row = paused(model, clock, 30)
    code(ask, model=model)
    run = drive(make_run())
    clock.advance(30)
    assert world.permits_grant() == [run.id]
    assert (drive(run).status, run.permits, run.model_limit) == (Status.PENDING, 0, None)
    assert paused(model, clock, 300) == row
    clock.advance(60)
    assert (drive(run).status, len(model.calls)) == (Status.SUSPENDED, 1)


def test_a_run_that_another_call_keeps_at_work_makes_its_call_when_the_pause_is_over(clock):
    model = Model("m")
    row = paused(model, clock, 2)
    ModelLimit.objects.filter(id=row.id).update(waiting=5)

    @tool
    async def work() -> str:
        clock.advance(60)
        while not model.calls:
            await asyncio.sleep(0.01)
        return "done"

    async def story(ctx, inbox):
        answers = await asyncio.gather(ctx.llm([USER]), ctx.tool("work"))
        return answers[0].text

    code(story, model=model, tools=[work])
    assert drive(make_run()).output == "hello"


def test_a_provider_that_nobody_has_asked_for_long_is_asked_again(clock):
    model = Model("m")
    row = paused(model, clock, -3600)
    ModelLimit.objects.filter(id=row.id).update(refusing_since=clock.now - timedelta(hours=5))
    world.limits_refresh()
    code(ask, model=model)
    assert drive(make_run()).output == "hello"


def test_a_run_that_a_limit_has_woken_calls_the_model_of_that_limit(clock):
    first, second = Model("first"), Model("second")
    row = paused(first, clock, 100)
    paused(second, clock, 200)
    code(ask, model=FallbackModel([first, second], fallback_after=10))
    run = drive(make_run())
    assert (run.status, run.model_limit) == (Status.SUSPENDED, row)
    clock.advance(100)
    assert world.permits_grant() == [run.id]
    paused(first, clock, 300)  # another refusal, after the permit
    assert (drive(run).output, len(first.calls), len(second.calls)) == ("hello", 1, 0)


def test_a_permit_is_for_one_limit(clock):
    first, second = Model("first"), Model("second")
    paused(first, clock, 30)
    paused(second, clock, 300)

    async def story(ctx, inbox):
        answers = await asyncio.gather(ctx.llm([USER], model=first), ctx.llm([USER], model=second))
        return answers[0].text

    code(story, model=first)
    run = drive(make_run())
    clock.advance(30)
    assert world.permits_grant() == [run.id]
    assert (drive(run).status, len(first.calls), len(second.calls)) == (Status.SUSPENDED, 1, 0)
    clock.advance(270)
    assert world.permits_grant() == [run.id]
    assert drive(run).output == "hello"
