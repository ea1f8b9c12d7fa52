"""A source's items reach its agent, each once, and are forgotten when they have long been gone from it."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.capabilities.feeds import Item
from ravi_django.models import Agent, InboxMessage, Run, Session, Signal, Source, SourceItem, Status
from ravi_django.testing import FakeClock
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

    told = world.deliver_items(source, items("one", "two"))

    run = Run.objects.get()
    source.refresh_from_db()
    assert told == world.Delivery(new=2, runs_to_hint=(run.id,))
    assert (run.owner, run.tenant, run.agent, run.session_id) == (owner, "acme", "test/code", source.home_id)
    assert (source.home.title, source.home.owner, source.home.tenant) == ("News", owner, "acme")
    assert titles_of(run) == ["one", "two"]
    boot = InboxMessage.objects.get().body["payload"]
    assert boot["kind"] == "data"
    item = {"id": "one", "title": "one", "text": "All about one", "revision": 1, "identity": ""}
    unknown = {"url": "", "published": "", "author": "", "extra": {}}
    whose = {"source": "News", "source_id": str(source.id)}
    assert boot["data"] | {"identity": ""} == {**item, **unknown, **whose}


@pytest.mark.sqlite
def test_an_item_is_delivered_once_for_each_source() -> None:
    source = a_source()
    world.deliver_items(source, items("one", "two"))

    again = world.deliver_items(source, items("two", "three", "three"))

    assert again.new == 1
    run = Run.objects.get()
    assert titles_of(run) == ["one", "two", "three"]
    assert SourceItem.objects.filter(source=source).count() == 3
    for name in ("More", "Even more"):
        world.deliver_items(a_source(home=run.session, name=name), items("one"))
    assert titles_of(Run.objects.get()) == ["one", "two", "three", "one", "one"]


def test_a_waiting_run_is_woken_and_reads_on_and_the_next_begins_in_the_same_session() -> None:
    source = a_source()
    world.deliver_items(source, items("one"))
    run = drive(Run.objects.get())
    assert run.status == Status.SUSPENDED

    world.deliver_items(source, items("two", "three"))

    run.refresh_from_db()
    assert run.status == Status.PENDING
    assert drive(run).output == "one,two,three"
    world.deliver_items(source, items("four"))
    new = Run.objects.exclude(id=run.id).get()
    assert (new.session_id, titles_of(new)) == (run.session_id, ["four"])


def waits_for(signal: str = "new_source_item", **fields: Any) -> Run:
    async def wait(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal(signal)

    code(wait)
    return drive(make_run(**fields))


def test_a_run_that_waits_for_its_signal_elsewhere_gets_the_item_and_its_session_becomes_home(owner: Any) -> None:
    session = world.create_session(Session(owner=owner))
    waiting = waits_for(session=session, owner=owner)
    source = a_source(owner)

    world.deliver_items(source, items("one"))

    source.refresh_from_db()
    assert source.home_id == session.id
    assert list(Run.objects.all()) == [waiting]
    assert Signal.objects.get().run_id == waiting.id


def test_a_run_of_another_owner_tenant_or_agent_or_that_waits_for_something_else_gets_nothing(owner: Any) -> None:
    waits_for(owner=get_user_model().objects.create_user("ben"))
    waits_for(owner=owner, tenant="other")
    Run.objects.filter(id=waits_for(owner=owner).id).update(agent="test/other")
    others = {*Run.objects.values_list("id", flat=True), waits_for("other", owner=owner).id}

    world.deliver_items(a_source(owner), items("one"))

    assert not Signal.objects.exists()
    assert Run.objects.exclude(id__in=others).get().owner == owner


def test_a_session_that_a_strangers_run_has_taken_is_left_to_it(owner: Any) -> None:
    session = world.create_session(Session(owner=owner))
    strangers = make_run(session=session, tenant="other", owner=owner)
    source = a_source(owner, home=session)

    world.deliver_items(source, items("one"))

    source.refresh_from_db()
    new = Run.objects.exclude(id=strangers.id).get()
    assert new.status == Status.PENDING
    assert source.home_id == new.session_id != session.id


@pytest.mark.parametrize("edits", [False, True])
def test_an_edit_is_recorded_and_delivered_again_only_with_the_option(edits: bool) -> None:
    source = a_source(options={"edits": True} if edits else {})
    world.deliver_items(source, [Item(id="1", title="one"), Item(id="2", title="two")])
    changed = [Item(id="1", title="ONE"), Item(id="2", title="two", url="https://example.org/moved")]

    told, again = world.deliver_items(source, changed), world.deliver_items(source, changed)

    assert (told.new, told.changed, again.changed) == (0, 1, 0)
    row = SourceItem.objects.get(title="ONE")
    assert row.revision == 2
    assert row.changed_at is not None
    signals = list(Signal.objects.order_by("id").values_list("payload__title", "payload__revision"))
    assert signals == [("two", 1), *([("ONE", 2)] if edits else [])]


@pytest.mark.parametrize("fault", ["unknown", "disabled", "inactive", "variables"])
def test_without_a_valid_agent_and_owner_nothing_is_recorded_and_the_source_has_the_error(
    owner: Any, fault: str
) -> None:
    source = a_source(owner, agent="no/body" if fault == "unknown" else "test/code")
    if fault == "disabled":
        Agent.objects.create(address="test/code", enabled=False)
    elif fault == "inactive":
        get_user_model().objects.update(is_active=False)
    elif fault == "variables":
        Agent.objects.create(address="spec/row", spec=CITY, source=Agent.Source.ADMIN, version=7)
        Source.objects.update(agent="spec/row")

    told = world.deliver_items(source, items("one"))

    source.refresh_from_db()
    assert told.error == source.error != ""
    assert (told.new, Run.objects.count(), SourceItem.objects.count()) == (0, 0, 0)
    if fault == "variables":  # the row is run in its present version, with the source's metadata
        metadata = {"variables": {"city": "Rome"}}
        Source.objects.update(options={"metadata": metadata})
        world.deliver_items(source, items("one"))
        assert Run.objects.values_list("agent_version", "metadata").get() == (7, metadata)


def test_a_disabled_or_deleted_source_delivers_nothing_and_many_items_take_bounded_transactions(
    django_assert_max_num_queries: Any,
) -> None:
    source = a_source(enabled=False)
    told = world.deliver_items(source, items("one"))
    gone = source.id
    source.delete()
    assert told == world.deliver_items(gone, items("one")) == world.Delivery(error=world.DELIVERY_GONE), (
        "they are to come again"
    )
    assert not Run.objects.exists()

    with django_assert_max_num_queries(60):
        told = world.deliver_items(a_source(), items(*(str(number) for number in range(450))))
    assert told.new == 450
    assert titles_of(Run.objects.get()) == [str(number) for number in range(450)]


@on_postgresql
def test_two_deliveries_at_once_deliver_each_item_once_and_share_one_new_run(owner: Any) -> None:
    source = a_source(owner)
    with transaction.atomic():
        first = world.deliver_items(source, items("one", "two"))
        second = in_background(world.deliver_items, source, items("two", "one", "three"))
        until(somebody_waits_for_a_lock)
    assert (first.new, second.result(BOUND_S).new) == (2, 1)
    assert titles_of(Run.objects.get()) == ["one", "two", "three"]

    session = world.create_session(Session())
    first, second = a_source(home=session), a_source(home=session, name="More")
    with transaction.atomic():
        world.deliver_items(first, items("one"))
        telling = in_background(world.deliver_items, second, items("two"))
        until(somebody_waits_for_a_lock)
    telling.result(BOUND_S)
    run = Run.objects.get(session=session)
    assert (run.status, titles_of(run)) == (Status.PENDING, ["one", "two"])


@on_postgresql
@pytest.mark.parametrize("change", [{"status": Status.COMPLETED}, {"agent": "test/other"}], ids=str)
def test_a_run_that_ends_or_is_handed_over_meanwhile_leaves_the_items_to_a_new_one(change: dict[str, Any]) -> None:
    source = a_source()
    world.deliver_items(source, items("one"))
    old = Run.objects.get()

    with transaction.atomic():
        Run.objects.filter(id=old.id).update(**change)
        telling = in_background(world.deliver_items, source, items("two"))
        until(somebody_waits_for_a_lock)

    assert telling.result(BOUND_S).new == 1
    assert titles_of(Run.objects.exclude(id=old.id).get()) == ["two"]


DAY = 24 * 3600.0
MONTH = {"source_items": 30 * DAY}


@pytest.fixture
def clock() -> Any:
    code(lambda ctx, inbox: None)
    with FakeClock(datetime(2026, 11, 22, 12, tzinfo=UTC)) as clock:
        yield clock


def known() -> list[str]:
    return list(SourceItem.objects.order_by("id").values_list("title", flat=True))


def test_what_is_still_there_stays_and_all_of_a_feed_that_says_nothing_new_for_long(clock: FakeClock) -> None:
    source = a_source()
    world.deliver_items(a_source(name="Quiet"), items("one", "two"))  # and then it answers 304
    world.deliver_items(source, items("gone", "there"))
    for _ in range(5):
        clock.advance(10 * DAY)
        world.deliver_items(source, items("there"))

    assert "source_items" not in world.prune({})
    assert world.retention({"source_items": 30}) == MONTH
    for dry_run in (True, False):
        assert world.prune(MONTH, dry_run=dry_run)["source_items"] == 1

    assert known() == ["one", "two", "there"]
    assert world.deliver_items(source, items("there")).new == 0
    clock.advance(400 * DAY)
    assert world.prune(MONTH)["source_items"] == 0


def test_that_it_is_there_is_written_once_a_day(clock: FakeClock) -> None:
    source = a_source()
    world.deliver_items(source, items("one", "two"))

    def updates() -> int:
        with CaptureQueriesContext(connection) as queries:
            world.deliver_items(source, items("one", "two"))
        return len([query for query in queries if query["sql"].startswith("UPDATE")])

    clock.advance(DAY - 1)
    assert updates() == 0
    clock.advance(2)
    assert [updates(), updates()] == [1, 0]


def test_of_what_can_be_sent_again_for_ever_all_stays(clock: FakeClock) -> None:
    source = a_source(kind="webhook", options={"scheme": "github"})
    for told in ("old", "new"):
        world.deliver_items(source, items(told))
        clock.advance(60 * DAY)

    assert world.prune(MONTH)["source_items"] == 0


def test_the_batches_are_bounded_and_leave_what_is_seen_again(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.patch(monkeypatch, "SOURCE_ITEMS_ROWS", 2)
    source = a_source(kind="webhook")
    world.deliver_items(source, items("1", "2", "3", "4", "5"))
    clock.advance(60 * DAY)
    world.deliver_items(source, items("6"))

    with CaptureQueriesContext(connection) as queries:
        assert world.prune(MONTH)["source_items"] == 5

    assert len([query for query in queries if 'DELETE FROM "ravi_sourceitem"' in query["sql"]]) == 3
    assert known() == ["6"]

    def see(execute: Any, sql: str, *given: Any) -> Any:
        if sql.startswith("DELETE"):
            SourceItem.objects.filter(title="again").update(seen_at=clock.now)
        return execute(sql, *given)

    world.deliver_items(source, items("again", "gone"))
    clock.advance(60 * DAY)
    world.deliver_items(source, items("there"))
    with connection.execute_wrapper(see):
        assert world.prune(MONTH)["source_items"] == 2
    assert known() == ["again", "there"], "what is seen again this moment stays"


@on_postgresql
@pytest.mark.parametrize("dry_run", [True, False])
def test_each_item_is_read_a_few_times_however_many_there_are(clock: FakeClock, dry_run: bool) -> None:
    for number in range(3):
        source = a_source(name=str(number))
        world.deliver_items(source, items(*(f"{number} {item}" for item in range(200))))
        clock.advance(60 * DAY)
        world.deliver_items(source, items(f"{number} there"))

    with transaction.atomic():
        before = items_read()
        assert world.prune(MONTH, dry_run=dry_run)["source_items"] == 600
        read = items_read() - before

    assert 603 <= read <= 10 * 603, "200 candidates of a source, and 201 rows read for each, are 120,600"


def items_read() -> int:
    """Rows of items that this transaction has read so far."""
    with connection.cursor() as cursor:
        table = SourceItem._meta.db_table
        cursor.execute(
            "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = %s", [table]
        )
        return int(cursor.fetchone()[0])
