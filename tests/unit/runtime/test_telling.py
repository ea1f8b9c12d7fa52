"""A source's items reach its agent: each once, whoever brings it and however often."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from ravi_django.capabilities.feeds import Item
from ravi_django.models import Agent, InboxMessage, Run, Session, Signal, Source, SourceItem, Status
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import code, drive, in_background, make_run, on_postgresql, somebody_waits_for_a_lock, until

CITY = {"variables": {"city": {"required": True}}, "model": "rehearsal"}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def owner() -> Any:
    return get_user_model().objects.create_user("ann")


@pytest.fixture(autouse=True)
def agent() -> Any:
    async def read_on(ctx: Any, inbox: Any) -> str:
        seen = [message.payload.data["title"] for message in inbox]
        while len(seen) < 3:
            seen.append((await ctx.sleep_until_signal("new_source_item"))["title"])
        return ",".join(seen)

    return code(read_on)


def a_source(owner: Any = None, **fields: Any) -> Source:
    return Source.objects.create(**{"name": "News", "agent": "test/code", "owner": owner, **fields})


def items(*titles: str) -> list[Item]:
    return [Item(id=title, title=title, text=f"All about {title}") for title in titles]


def titles_of(run: Run) -> list[str]:
    first = [row.body["payload"]["data"]["title"] for row in InboxMessage.objects.filter(run=run)]
    return first + [signal.payload["title"] for signal in Signal.objects.filter(run=run).order_by("id")]


def test_the_first_items_begin_one_run_of_the_owner_in_a_session_of_the_source(owner: Any) -> None:
    source = a_source(owner, tenant="acme")

    told = world.tell(source, items("one", "two"))

    run = Run.objects.get()
    source.refresh_from_db()
    assert told == world.Told(new=2, runs_to_hint=(run.id,))
    assert (run.owner, run.tenant, run.agent, run.session_id) == (owner, "acme", "test/code", source.home_id)
    assert (source.home.title, source.home.owner, source.home.tenant) == ("News", owner, "acme")
    assert titles_of(run) == ["one", "two"]
    boot = InboxMessage.objects.get().body["payload"]
    assert boot["kind"] == "data"
    assert boot["data"] | {"identity": ""} == {
        "source": "News",
        "source_id": str(source.id),
        "identity": "",
        "revision": 1,
        "id": "one",
        "title": "one",
        "url": "",
        "text": "All about one",
        "published": "",
        "author": "",
        "extra": {},
    }


@pytest.mark.sqlite
def test_what_was_told_is_not_told_again() -> None:
    source = a_source()
    world.tell(source, items("one", "two"))

    again = world.tell(source, items("two", "three", "three"))

    assert again.new == 1
    assert titles_of(Run.objects.get()) == ["one", "two", "three"]
    assert SourceItem.objects.filter(source=source).count() == 3


def test_a_waiting_run_is_woken_and_reads_on() -> None:
    source = a_source()
    world.tell(source, items("one"))
    run = drive(Run.objects.get())
    assert run.status == Status.SUSPENDED

    world.tell(source, items("two", "three"))

    run.refresh_from_db()
    assert run.status == Status.PENDING
    assert drive(run).output == "one,two,three"


def test_when_its_run_has_ended_the_next_begins_in_the_same_session() -> None:
    source = a_source()
    world.tell(source, items("one"))
    Run.objects.update(status=Status.COMPLETED)

    world.tell(source, items("two"))

    old, new = Run.objects.order_by("id")
    assert new.session_id == old.session_id
    assert titles_of(new) == ["two"]


def test_a_run_that_waits_for_its_signal_elsewhere_is_told_and_its_session_becomes_home(owner: Any) -> None:
    async def wait(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("new_source_item")

    code(wait)
    session = world.create_session(Session(owner=owner))
    waiting = drive(make_run(session=session, owner=owner))
    source = a_source(owner)

    world.tell(source, items("one"))

    source.refresh_from_db()
    assert source.home_id == session.id
    assert list(Run.objects.all()) == [waiting]
    assert Signal.objects.get().run_id == waiting.id


@pytest.mark.parametrize("other", [{"tenant": "other"}, {"agent": "test/other"}, {"signal": "other"}, {"own": False}])
def test_a_run_of_another_owner_tenant_or_agent_or_that_waits_for_something_else_is_not_told(
    owner: Any, other: dict[str, Any]
) -> None:
    async def wait(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal(other.get("signal", "new_source_item"))

    code(wait)
    mine = owner if other.get("own", True) else get_user_model().objects.create_user("ben")
    waiting = drive(make_run(owner=mine, tenant=other.get("tenant", "")))
    if "agent" in other:
        Run.objects.filter(id=waiting.id).update(agent=other["agent"])

    world.tell(a_source(owner), items("one"))

    assert not Signal.objects.exists()
    assert Run.objects.exclude(id=waiting.id).get().owner == owner


def test_a_session_that_a_strangers_run_has_taken_is_left_to_it(owner: Any) -> None:
    session = world.create_session(Session(owner=owner))
    strangers = make_run(session=session, tenant="other", owner=owner)
    source = a_source(owner, home=session)

    world.tell(source, items("one"))

    source.refresh_from_db()
    new = Run.objects.exclude(id=strangers.id).get()
    assert new.status == Status.PENDING
    assert source.home_id == new.session_id != session.id


@pytest.mark.parametrize("edits", [False, True])
def test_an_edit_is_recorded_and_told_again_only_when_asked_for(edits: bool) -> None:
    source = a_source(options={"edits": True} if edits else {})
    world.tell(source, [Item(id="1", title="one"), Item(id="2", title="two")])
    changed = [Item(id="1", title="ONE"), Item(id="2", title="two", url="https://example.org/moved")]

    told, again = world.tell(source, changed), world.tell(source, changed)

    assert (told.new, told.changed, again.changed) == (0, 1, 0)
    row = SourceItem.objects.get(title="ONE")
    assert row.revision == 2
    assert row.changed_at is not None
    signals = list(Signal.objects.order_by("id").values_list("payload__title", "payload__revision"))
    assert signals == [("two", 1), *([("ONE", 2)] if edits else [])]


@pytest.mark.parametrize("fault", ["unknown", "disabled", "inactive", "variables"])
def test_where_nobody_can_be_told_nothing_is_recorded_and_the_source_says_why(owner: Any, fault: str) -> None:
    source = a_source(owner, agent="no/body" if fault == "unknown" else "test/code")
    if fault == "disabled":
        Agent.objects.create(address="test/code", enabled=False)
    elif fault == "inactive":
        get_user_model().objects.update(is_active=False)
    elif fault == "variables":
        Agent.objects.create(address="spec/row", spec=CITY, source=Agent.Source.ADMIN)
        Source.objects.update(agent="spec/row")

    told = world.tell(source, items("one"))

    source.refresh_from_db()
    assert told.error == source.error != ""
    assert (told.new, Run.objects.count(), SourceItem.objects.count()) == (0, 0, 0)


def test_an_agent_that_is_a_row_is_run_in_its_present_version_with_the_sources_metadata() -> None:
    Agent.objects.create(address="spec/row", spec=CITY, source=Agent.Source.ADMIN, version=7)
    source = a_source(agent="spec/row", options={"metadata": {"variables": {"city": "Rome"}}})

    world.tell(source, items("one"))

    run = Run.objects.get()
    assert (run.agent_version, run.metadata) == (7, {"variables": {"city": "Rome"}})


def test_a_source_that_is_switched_off_or_gone_tells_nobody() -> None:
    source = a_source(enabled=False)
    told = world.tell(source, items("one"))
    gone = source.id
    source.delete()

    assert told == world.tell(gone, items("one")) == world.Told(error=world.TELLING_GONE), "they are to come again"
    assert not Run.objects.exists()


def test_many_items_are_told_in_bounded_transactions(django_assert_max_num_queries: Any) -> None:
    source = a_source()

    with django_assert_max_num_queries(60):
        told = world.tell(source, items(*(str(number) for number in range(450))))

    assert told.new == 450
    assert titles_of(Run.objects.get()) == [str(number) for number in range(450)]


@on_postgresql
def test_two_who_bring_the_same_items_at_once_tell_them_once(owner: Any) -> None:
    source = a_source(owner)

    with transaction.atomic():
        first = world.tell(source, items("one", "two"))
        second = in_background(world.tell, source, items("two", "one", "three"))
        until(somebody_waits_for_a_lock)

    assert (first.new, second.result(BOUND_S).new) == (2, 1)
    assert titles_of(Run.objects.get()) == ["one", "two", "three"]


@on_postgresql
def test_a_run_that_ends_while_it_is_being_told_leaves_the_items_to_a_new_one() -> None:
    source = a_source()
    world.tell(source, items("one"))
    old = Run.objects.get()

    with transaction.atomic():
        Run.objects.filter(id=old.id).update(status=Status.COMPLETED)
        telling = in_background(world.tell, source, items("two"))
        until(somebody_waits_for_a_lock)

    assert telling.result(BOUND_S).new == 1
    assert titles_of(Run.objects.exclude(id=old.id).get()) == ["two"]


@on_postgresql
def test_a_run_that_is_handed_over_meanwhile_is_not_told() -> None:
    source = a_source()
    world.tell(source, items("one"))
    old = Run.objects.get()

    with transaction.atomic():
        Run.objects.filter(id=old.id).update(agent="test/other")
        telling = in_background(world.tell, source, items("two"))
        until(somebody_waits_for_a_lock)

    assert telling.result(BOUND_S).new == 1
    assert titles_of(Run.objects.exclude(id=old.id).get()) == ["two"]


@on_postgresql
def test_two_sources_that_begin_in_one_session_share_its_run() -> None:
    session = world.create_session(Session())
    first, second = a_source(home=session), a_source(home=session, name="More")

    with transaction.atomic():
        world.tell(first, items("one"))
        telling = in_background(world.tell, second, items("two"))
        until(somebody_waits_for_a_lock)

    telling.result(BOUND_S)
    run = Run.objects.get()
    assert run.status == Status.PENDING
    assert titles_of(run) == ["one", "two"]


def test_the_same_item_of_two_sources_is_told_for_each() -> None:
    session = world.create_session(Session())

    world.tell(a_source(home=session), items("one"))
    world.tell(a_source(home=session, name="More"), items("one"))
    world.tell(a_source(home=session, name="Even more"), items("one"))

    assert titles_of(Run.objects.get()) == ["one", "one", "one"]
