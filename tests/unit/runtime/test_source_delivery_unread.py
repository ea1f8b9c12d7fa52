"""What a run was told and has not read when it ends is read by the next, in its order; and none is told without end."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import register
from ravi_django.agents import InformationAgent
from ravi_django.capabilities.feeds import Item
from ravi_django.kernel import BudgetExhaustedError
from ravi_django.models import InboxMessage, Run, Session, Signal, Source, SourceItem, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.budgets import USER, model
from tests.support.runs import code, drive, make_run, on_postgresql, take_over

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = 60.0


@pytest.fixture
def clock() -> Any:
    with FakeClock(datetime(2026, 11, 22, 12, tzinfo=UTC)) as clock:
        yield clock


@pytest.fixture
def read() -> list[str]:
    """What an agent that completes after one item has read."""
    titles: list[str] = []

    async def one(ctx: Any, inbox: Any) -> None:
        titles.append(inbox[0].payload.data["title"])

    code(one)
    return titles


def a_source(owner: Any = None, **fields: Any) -> Source:
    return Source.objects.create(**{"name": "News", "agent": "test/code", "owner": owner, **fields})


def items(*titles: str) -> list[Item]:
    return [Item(id=title, title=title) for title in titles]


def numbered(count: int, start: int = 0) -> list[Item]:
    return items(*(str(number) for number in range(start, start + count)))


def unread() -> list[str]:
    return [signal.payload["title"] for signal in Signal.objects.filter(consumed_at=None).order_by("id")]


def boot_of(run: Run) -> str:
    return str(InboxMessage.objects.get(run=run).body["payload"]["data"]["title"])


# ----------------------------------------------------------------------------------------------- runs that have ended


def test_an_agent_that_completes_after_one_item_reads_each_in_its_order(clock: FakeClock, read: list[str]) -> None:
    source = a_source()
    world.deliver_items(source, numbered(5))
    with CaptureQueriesContext(connection) as queries:
        assert world.sweep_unread() == []
    assert len(queries) == 1, "nothing is left: one look"
    drive(Run.objects.get())

    assert world.left_unread(10) == [source.id]
    first, second = world.deliver_unread(source.id), world.deliver_unread(source.id)
    assert (first is None, second, Run.objects.count()) == (False, None, 2), "two that begin at once begin one run"
    drive(Run.objects.latest("id"))
    world.sweeper_sweep(send=lambda runs: [])
    assert Run.objects.count() == 3
    drive(Run.objects.latest("id"))
    for _ in range(2):
        (begun,) = world.sweep_unread()
        drive(Run.objects.get(id=begun))

    assert read == ["0", "1", "2", "3", "4"]
    assert world.sweep_unread() == unread() == []
    assert Run.objects.values("session_id").distinct().count() == 1


def test_a_new_item_brings_what_was_left_before_it(clock: FakeClock, read: list[str]) -> None:
    source = a_source()
    world.deliver_items(source, items("one", "two", "three"))
    drive(Run.objects.get())

    (begun,) = world.deliver_items(source, items("four")).runs_to_hint

    new = Run.objects.get(id=begun)
    assert boot_of(new) == "two"
    assert list(new.signals.filter(consumed_at=None).values_list("payload__title", flat=True)) == ["three", "four"]
    assert unread() == ["three", "four"]


def test_a_newsroom_whose_day_is_spent_loses_nothing_and_is_not_begun_each_sweep(
    clock: FakeClock, settings: Any
) -> None:
    settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": {"user": {"max_turns": 1}}}
    told: list[str] = []

    async def handle(ctx: Any, item: Any, state: Any) -> None:
        await ctx.llm([USER], model=model(10, 0.5))
        told.append(item.title)

    register(InformationAgent("news", handle=handle))
    owner = get_user_model().objects.create_user("ann")
    world.deliver_items(a_source(owner, agent="information/news"), numbered(50))
    spender = code(lambda ctx, inbox: ctx.llm([USER]), model=model(10, 0.5))
    drive(make_run(owner=owner, agent=str(spender.id)))  # the day is spent
    runs = Run.objects.filter(agent="information/news").order_by("id")

    failed = drive(runs[0])
    assert (failed.status, failed.error["type"]) == (Status.FAILED, "BudgetExhaustedError")
    begun = 0
    for _ in range(12 * 12):  # twelve hours of the same day
        clock.advance(5 * MINUTE - 1)
        for run_id in world.sweep_unread():
            begun += 1
            assert drive(Run.objects.get(id=run_id)).status == Status.FAILED
    assert 4 <= begun <= 9, "twice as late each time"

    settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": {}}
    clock.advance(24 * 60 * MINUTE)
    (last,) = world.sweep_unread()
    while (run := drive(Run.objects.get(id=last))).status == Status.PENDING:
        pass
    assert (run.status, unread()) == (Status.SUSPENDED, [])
    assert told == [str(number) for number in range(50)]


@pytest.mark.parametrize("did", ["nothing", "a call", "a step"])
def test_an_item_on_which_a_run_failed_is_its_own_and_holds_up_the_others_for_five_minutes(
    clock: FakeClock, settings: Any, did: str
) -> None:
    settings.RAVI = {**settings.RAVI, "DAILY_BUDGETS": {"user": {"max_turns": 1}}}

    async def fails(ctx: Any, inbox: Any) -> None:
        if did == "nothing":
            raise ValueError("not this one")
        if did == "a step":
            await ctx.log("notes", {"taken": 1})
            raise BudgetExhaustedError("of its own")
        await ctx.llm([USER])
        await ctx.llm([USER])

    code(fails, model=model(10, 0.5))
    world.deliver_items(a_source(get_user_model().objects.create_user("ann")), items("one", "two"))
    failed = drive(Run.objects.get())
    assert failed.error["type"] == ("ValueError" if did == "nothing" else "BudgetExhaustedError")

    clock.advance(5 * MINUTE - 1)
    assert world.sweep_unread() == []
    clock.advance(2)
    (begun,) = world.sweep_unread()

    assert boot_of(Run.objects.get(id=begun)) == "two"


@on_postgresql
def test_who_dies_in_between_leaves_all_to_the_next(
    clock: FakeClock, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = a_source()
    world.deliver_items(source, items("one", "two", "three"))
    drive(Run.objects.get())

    class Killed(BaseException):
        pass

    def dies(*args: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        world.patch(patch, "delivery_carry", dies)  # the run is written, the rest is not yet
        with pytest.raises(Killed):
            world.sweep_unread()
    assert (Run.objects.count(), unread()) == (1, ["two", "three"])

    (begun,) = world.sweep_unread()
    drive(Run.objects.get(id=begun), dies=1)
    take_over(clock, Run.objects.get(id=begun))
    (begun,) = world.sweep_unread()
    drive(Run.objects.get(id=begun))

    assert list(dict.fromkeys(read)) == ["one", "two", "three"]
    assert unread() == []


@pytest.mark.parametrize("why", ["disabled", "other signal", "somebody else's", "alive", "handed over"])
def test_what_is_not_left_for_it_begins_no_run(clock: FakeClock, read: list[str], why: str) -> None:
    source = a_source()
    world.deliver_items(source, items("one", "two"))
    if why != "alive":
        drive(Run.objects.get())
    if why == "disabled":
        Source.objects.update(enabled=False)
    elif why == "other signal":
        Source.objects.update(signal="other")
    elif why == "somebody else's":
        Run.objects.update(tenant="other")
    elif why == "handed over":
        Run.objects.update(agent="test/other")

    assert world.sweep_unread() == []
    assert Run.objects.count() == 1


def test_what_was_left_of_sources_is_read_by_one_run_also_when_another_session_becomes_home(
    clock: FakeClock, read: list[str]
) -> None:
    home = world.create_session(Session())
    source = a_source(home=home)
    world.deliver_items(source, items("one", "two"))
    world.deliver_items(a_source(home=home, name="More", signal="more"), items("three"))
    drive(Run.objects.get())
    for _ in range(2):
        (begun,) = world.sweep_unread()
        drive(Run.objects.get(id=begun))
    assert read == ["one", "two", "three"]
    world.deliver_items(source, items("four", "five"))
    drive(Run.objects.latest("id"))

    async def wait(ctx: Any, inbox: Any) -> str:
        return str([(await ctx.sleep_until_signal("new_source_item"))["title"] for _ in range(2)])

    code(wait)
    waiting = drive(make_run())
    world.deliver_items(source, items("six"))
    assert drive(waiting).output == "['five', 'six']"


# ---------------------------------------------------------------------------------------------------- too much unread


@pytest.fixture
def few(settings: Any, read: list[str]) -> None:
    settings.RAVI = {**settings.RAVI, "SOURCE_UNREAD": 3}


@pytest.mark.parametrize("status", [Status.PENDING, Status.BLOCKED, Status.FAILED])
def test_a_run_with_much_unread_gets_nothing_more_and_nothing_is_recorded(few: None, status: Status) -> None:
    source = a_source()
    world.deliver_items(source, numbered(4))
    Run.objects.update(status=status)

    told = world.deliver_items(source, items("more"))

    source.refresh_from_db()
    assert told == world.Delivery(error=world.DELIVERY_UNREAD, again_in_s=world.UNREAD_S)
    assert source.error == world.DELIVERY_UNREAD
    assert (SourceItem.objects.count(), Run.objects.count(), unread()) == (4, 1, ["1", "2", "3"])

    Signal.objects.filter(payload__title="1").update(consumed_at="2026-11-22T12:00:00Z")
    assert world.deliver_items(source, items("more")).new == 1


# ------------------------------------------------------------------------------------------------------ so many a day


def test_a_source_brings_so_many_new_items_a_day(
    clock: FakeClock, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = a_source(options={"max_items_a_day": 3})
    world.deliver_items(source, numbered(2))

    told = world.deliver_items(source, numbered(5))

    assert (told.new, told.again_in_s, SourceItem.objects.count()) == (1, 3600.0, 3)
    assert "max_items_a_day" in told.error
    assert world.deliver_items(source, numbered(5)).new == 0
    clock.advance(12 * 3600)
    assert world.deliver_items(source, numbered(5)).new == 2
    world.patch(monkeypatch, "A_DAY", 1)  # an adapter has no such limit of its own
    new = {kind: world.deliver_items(a_source(kind=kind), numbered(2)).new for kind in ("feed", "webhook", "adapter")}
    assert new == {"feed": 1, "webhook": 1, "adapter": 2}


def worded(words: str, *titles: str) -> list[Item]:
    return [Item(id=title, title=title, text=words) for title in titles]


def test_delivered_edits_are_counted_with_the_new_items(clock: FakeClock) -> None:
    code(lambda ctx, inbox: ctx.sleep_until_signal("never"))
    source = a_source(options={"edits": True, "max_items_a_day": 5})
    world.deliver_items(source, worded("", "0", "1", "2"))

    told = world.deliver_items(source, worded("first", "0", "1", "2", "new"))
    for number in range(29):
        assert world.deliver_items(source, worded(f"round {number}", "0", "1", "2", "new")).changed == 0

    assert (told.new, told.changed, told.again_in_s) == (1, 1, 3600.0)

    def payloads() -> list[Any]:
        return [signal.payload for signal in Signal.objects.order_by("id")]

    assert [signal["title"] + signal["text"] for signal in payloads()] == ["1", "2", "newfirst", "0first"]
    source.refresh_from_db()
    assert "max_items_a_day" in source.error and source.error == told.error
    assert source.options["delivered_today"]["items"] == 5

    clock.advance(12 * 3600)
    told = world.deliver_items(source, worded("last", "0", "1", "2", "new"))
    assert (told.changed, told.error) == (4, "")
    revisions = [(signal["title"], signal["revision"]) for signal in payloads()[4:]]
    assert revisions == [("0", 3), ("1", 2), ("2", 2), ("new", 2)]
    quiet = a_source(options={"max_items_a_day": 3})  # nobody is told of its edits: they take no room
    world.deliver_items(quiet, worded("", "0", "1"))
    seen = [world.deliver_items(quiet, worded(f"round {number}", "0", "1")) for number in range(3)]
    assert [(one.changed, one.error) for one in seen] == [(2, "")] * 3
    assert world.deliver_items(quiet, items("new")).new == 1


# --------------------------------------------------------------------------------------------------------- many unread


@pytest.mark.sqlite
def test_a_signal_behind_many_others_is_found_with_its_payload(clock: FakeClock) -> None:
    async def wait(ctx: Any, inbox: Any) -> str:
        found = await ctx.sleep_until_signal("b")
        more = [(await ctx.sleep_until_signal("a"))["n"] for _ in range(60)]
        return f"{found['n']} {more[0]} {more[-1]} {len(set(more))}"

    code(wait)
    run = make_run()
    with transaction.atomic():
        for number in range(200):
            world.send_signal(run.id, "a", {"n": number})
        world.send_signal(run.id, "b", {"n": 7})
        world.send_signal(run.id, "b", None)
    world.wake_silent(run.id)

    with FakeClock() as later:
        run = drive(run, dies=30)
        assert take_over(later, run).output == "7 0 59 60"
    assert Signal.objects.filter(consumed_at=None).count() == 202 - 61
