"""What a source knows of its items goes when they have long been gone from it, and no sooner."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.capabilities.feeds import Item
from ravi_django.models import Source, SourceItem
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.runs import code, on_postgresql

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 24 * 3600.0
MONTH = {"source_items": 30 * DAY}


@pytest.fixture
def clock() -> Any:
    code(lambda ctx, inbox: None)
    with FakeClock(datetime(2026, 11, 22, 12, tzinfo=UTC)) as clock:
        yield clock


def a_source(**fields: Any) -> Source:
    return Source.objects.create(**{"name": "News", "agent": "test/code", **fields})


def items(*titles: str) -> list[Item]:
    return [Item(id=title, title=title) for title in titles]


def known() -> list[str]:
    return list(SourceItem.objects.order_by("id").values_list("title", flat=True))


def test_what_is_still_there_stays_and_all_of_a_feed_that_says_nothing_new_for_long(clock: FakeClock) -> None:
    source = a_source()
    world.tell(a_source(name="Quiet"), items("one", "two"))  # and then it answers 304
    world.tell(source, items("gone", "there"))
    for _ in range(5):
        clock.advance(10 * DAY)
        world.tell(source, items("there"))

    assert "source_items" not in world.prune({})
    assert world.retention({"source_items": 30}) == MONTH
    for dry_run in (True, False):
        assert world.prune(MONTH, dry_run=dry_run)["source_items"] == 1

    assert known() == ["one", "two", "there"]
    assert world.tell(source, items("there")).new == 0
    clock.advance(400 * DAY)
    assert world.prune(MONTH)["source_items"] == 0


def test_that_it_is_there_is_written_once_a_day(clock: FakeClock) -> None:
    source = a_source()
    world.tell(source, items("one", "two"))

    def updates() -> int:
        with CaptureQueriesContext(connection) as queries:
            world.tell(source, items("one", "two"))
        return len([query for query in queries if query["sql"].startswith("UPDATE")])

    clock.advance(DAY - 1)
    assert updates() == 0
    clock.advance(2)
    assert [updates(), updates()] == [1, 0]


@pytest.mark.parametrize(
    "fields", [{"kind": "model", "location": "project.Invoice"}, {"kind": "webhook", "options": {"scheme": "github"}}]
)
def test_of_models_and_of_what_can_be_sent_again_for_ever_all_stays(clock: FakeClock, fields: dict[str, Any]) -> None:
    source = a_source(**fields)
    world.tell(source, items("old"))
    clock.advance(60 * DAY)
    world.tell(source, items("new"))

    assert world.prune(MONTH)["source_items"] == 0


def test_the_batches_are_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "SOURCE_ITEMS_ROWS", 2)
    source = a_source(kind="webhook")
    world.tell(source, items("1", "2", "3", "4", "5"))
    clock.advance(60 * DAY)
    world.tell(source, items("6"))

    with CaptureQueriesContext(connection) as queries:
        assert world.prune(MONTH)["source_items"] == 5

    assert [query["sql"].count("DELETE") for query in queries if 'DELETE FROM "ravi_sourceitem"' in query["sql"]] == [
        1
    ] * 3
    assert known() == ["6"]


def test_what_is_seen_again_this_moment_stays(clock: FakeClock) -> None:
    source = a_source()
    world.tell(source, items("again", "gone"))
    clock.advance(60 * DAY)
    world.tell(source, items("there"))

    def see(execute: Any, sql: str, *given: Any) -> Any:
        if sql.startswith("DELETE"):
            SourceItem.objects.filter(title="again").update(seen_at=clock.now)
        return execute(sql, *given)

    with connection.execute_wrapper(see):
        assert world.prune(MONTH)["source_items"] == 1

    assert known() == ["again", "there"]


@on_postgresql
@pytest.mark.parametrize("dry_run", [True, False])
def test_each_item_is_read_a_few_times_however_many_there_are(clock: FakeClock, dry_run: bool) -> None:
    for number in range(3):
        source = a_source(name=str(number))
        world.tell(source, items(*(f"{number} {item}" for item in range(200))))
        clock.advance(60 * DAY)
        world.tell(source, items(f"{number} there"))

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
