"""The event bus's outbox: in whose transaction it is written, and at what cost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import submit
from ravi_django.kernel import Event, LeaseLostError, SecretRefusedError
from ravi_django.models import HumanRequest, OutboxEvent, Run, Status
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.outboxes import answers, told, types
from tests.support.runs import (
    code,
    leased,
    make_run,
    on_postgresql,
)
from tests.support.world import Entry, append_repeatable, enqueue, relay_event

pytestmark = pytest.mark.django_db(transaction=True)


def _approval(run: Run, **fields: Any) -> HumanRequest:
    lease = leased(run)
    made = HumanRequest(
        run=run, path="0", kind="approval", tool="refund", text="refund?", owner=run.owner, tenant=run.tenant, **fields
    )
    world.open_request(lease, [Entry("request.opened", "@request.0.1")], request=made)
    return made


def test_what_is_rolled_back_was_never_told(hints: list[int]) -> None:
    code(answers)
    with pytest.raises(RuntimeError), transaction.atomic():
        submit("test/code", "never mind")
        enqueue(Event.create("shop.sold", source="shop", number=1))
        assert len(told()) == 2
        raise RuntimeError

    assert told() == []
    assert hints == []


def test_a_zombie_tells_nothing(hints: list[int]) -> None:
    with FakeClock() as clock:
        zombie = leased()
        clock.advance(100)
        assert world.claim(zombie.run_id, "next") is not None
        OutboxEvent.objects.all().delete()
        entry = Entry("run.completed", "@completed.1")
        for write in (world.append, partial(world.finish, status=Status.COMPLETED, output="x")):
            with pytest.raises(LeaseLostError):
                write(zombie, entries=[Entry("run.started", "@started"), entry])

    assert told() == []


def test_a_repeated_append_tells_once(hints: list[int]) -> None:
    lease = leased()
    entries = [Entry("run.started", "@started"), Entry("log", "0")]
    for _ in range(2):
        append_repeatable(lease, entries, [])

    assert types() == ["workflow.started", "run.started"]


@on_postgresql
def test_many_rows_go_through_the_orm_and_tell_the_same(hints: list[int]) -> None:
    lease = leased()
    rows = [Entry("log", f"{number}") for number in range(world.MAX_ROWS)]
    world.fence_append(lease, [Entry("run.started", "@started"), *rows], [])

    assert types() == ["workflow.started", "run.started"]


def _statements(settings: Any, bus: str | None, work: Any) -> list[str]:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": bus}
    with CaptureQueriesContext(connection) as found:
        work()
    return [query["sql"] for query in found.captured_queries]


def _one_run() -> None:
    run = make_run()
    lease = leased(run)
    world.append(lease, [Entry("run.started", "@started"), Entry("tool.call", "0", "t")])
    world.append(lease, [Entry("tool.call", "1", "t")])
    world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="x")


def test_without_a_bus_nothing_is_asked_or_written(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hinted: list[int] = []
    world.patch(monkeypatch, "courier_hint", lambda: hinted.append(1))

    off = _statements(settings, None, _one_run)
    request = _approval(make_run())
    world.answer_request(request.id, {"action": "approve", "by": "ann"}, by=None)

    assert not any("outbox" in sql for sql in off)
    assert OutboxEvent.objects.count() == 0
    assert hinted == []
    assert enqueue(Event.create("shop.sold", source="shop")) is False
    assert OutboxEvent.objects.count() == 0


@on_postgresql
def test_a_runs_events_ride_on_its_statements(settings: Any, hints: list[int]) -> None:
    """Not one round trip more, and the statements of what is no event are the same."""
    off = _statements(settings, None, _one_run)
    on = _statements(settings, "memory", _one_run)

    assert len(on) == len(off)
    assert sum("outbox" in sql for sql in on) == 4  # submit, claim, first append, end
    assert types() == ["workflow.started", "run.started", "run.completed"]


# ------------------------------------------------------------------------------------------- a site's own events


def test_a_site_tells_of_its_own_changes(hints: list[int]) -> None:
    event = Event.create("shop.sold", source="shop", correlation_id="order-1", amount=3)

    assert enqueue(event, "shop") is True

    (row,) = OutboxEvent.objects.all()
    found = relay_event(row)
    assert row.topic == "shop"
    assert found is not None and found.model_dump(exclude={"ts"}) == event.model_dump(exclude={"ts"})
    assert hints == [1]


def test_a_password_is_no_event(hints: list[int]) -> None:
    with pytest.raises(SecretRefusedError, match=r"data\.password"):
        enqueue(Event.create("user.made", source="shop", password="x"))
    assert told() == []
