"""RAVI["RETENTION"] of sessions, runs, requests, audit records, publications and events for a bus."""

from typing import Any

import pytest

import ravi_django
from ravi_django import emit, follow
from ravi_django.kernel import Event, IllegalTransitionError
from ravi_django.management import diagnosis
from ravi_django.models import (
    AuditRecord,
    Blob,
    FeedItem,
    HumanRequest,
    InboxMessage,
    JournalEntry,
    OutboxEvent,
    Publication,
    Run,
    Schedule,
    Session,
    Status,
    Turn,
)
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.asked import approval_of
from tests.support.runs import code, leased, make_run
from tests.support.world import Entry, enqueue

pytestmark = pytest.mark.django_db(transaction=True)

DAY = world.DAY_S
COUNTED = {"sessions": Session, "runs": Run, "requests": HumanRequest, "audit": AuditRecord}


def counts() -> dict[str, int]:
    return {name: model.objects.count() for name, model in COUNTED.items()}


def ended(status: Status = Status.COMPLETED, session: Session | None = None) -> Run:
    """A run with a request that was answered, a turn, and a journal with a big value."""
    run = make_run(session=session)
    world.answer(approval_of(run), "deny", reason="no")
    lease = leased(run)
    world.append(lease, [Entry("log", "x", result={"text": str(run.id) * 10_000})])
    world.finish(lease, status, [Entry(f"run.{status}", "@end")], error=None)
    Turn.objects.create(
        session=run.session, run=run, agent="a/b", position=run.session.turns.count(), role="user", content=[]
    )
    return run


GOES = {"sessions": (1, 1, 1, 0), "runs": (0, 1, 1, 0), "requests": (0, 0, 1, 0), "audit": (0, 0, 0, 2)}


@pytest.mark.parametrize(
    ("kind", "goes"), [(kind, dict(zip(COUNTED, gone, strict=True))) for kind, gone in GOES.items()]
)
@pytest.mark.sqlite
def test_what_is_named_goes_when_it_is_old(clock: FakeClock, kind: str, goes: dict[str, int]) -> None:
    ended()
    clock.advance(10 * DAY)
    ended()
    before, details = counts(), list(AuditRecord.objects.order_by("id").values_list("detail", flat=True))
    keep = world.retention({kind: 5})
    dry = world.prune(keep, dry_run=True)
    assert (counts(), dry[kind]) == (before, goes[kind])
    assert world.prune(keep)[kind] == goes[kind]
    assert counts() == {name: count - goes[name] for name, count in before.items()}
    left = list(AuditRecord.objects.order_by("id").values_list("detail", flat=True))
    assert left == details[goes["audit"] :]
    assert Turn.objects.count() == 2 - goes["sessions"]
    assert JournalEntry.objects.filter(kind="log").count() == InboxMessage.objects.count() == 2 - goes["runs"]
    assert world.prune(keep)[kind] == 0
    clock.advance(3601)
    world.prune({})
    assert Blob.objects.count() == 2 - goes["runs"]
    before = counts()
    clock.advance(10 * DAY)
    world.prune(world.retention(5))
    assert counts() == before, "a number alone is not for them"


@pytest.mark.sqlite
def test_what_goes_on_stays(clock: FakeClock, django_user_model: Any) -> None:
    code(print)
    session, ann = Session.objects.create(), django_user_model.objects.create_user("ann")
    ended(session=session)
    ended(Status.FAILED, session=Session.objects.create(parent_session=session))
    live = make_run(session=Session.objects.create(parent_session=session))
    held = [ended().session for _ in range(2)]
    Schedule.objects.create(name="s", agent="test/code", input="x", every_s=60, session=held[0])
    follow, _ = ravi_django.follow("test/code", "news/sport", user=ann)
    type(follow).objects.update(home=held[1])
    clock.advance(10 * DAY)
    before = counts()
    world.prune(world.retention({"sessions": 5}))
    assert counts() == before
    Run.objects.filter(id=live.id).update(session=session, status=Status.CANCELLED, finished_at=clock.now)
    world.prune(world.retention({"sessions": 5}))
    assert counts() == before
    world.prune(world.retention({"requests": 5}))
    assert HumanRequest.objects.get().run.status == Status.FAILED


@pytest.mark.sqlite
def test_an_old_run_is_not_retried_while_it_goes(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    run, erase = ended(Status.FAILED), world.erase_trees
    clock.advance(10 * DAY)

    def late(roots: Any, **more: Any) -> None:
        with pytest.raises(IllegalTransitionError, match="pruned"):
            world.store_retry(run.id)
        erase(roots, **more)

    world.patch(monkeypatch, "erase_trees", late)
    world.prune(world.retention({"runs": 5}))
    assert not Run.objects.exists()


KEEP = {"outbox": 30 * DAY}


@pytest.fixture(autouse=True)
def _not_relayed(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "courier_hint")


def bus(settings: Any, where: str | None) -> None:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": where}


def write(settings: Any, count: int) -> None:
    bus(settings, "redis://127.0.0.1:1/0")
    for number in range(count):
        assert enqueue(Event.create("shop.sold", source="shop", number=number))


def numbers() -> list[int]:
    return [row.body["data"]["number"] for row in OutboxEvent.objects.order_by("id")]


def test_what_waits_for_no_bus_goes_when_it_is_old(settings: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "PRUNE_ROWS", 2)
    write(settings, 5)
    refused = OutboxEvent.objects.latest("id").pk
    OutboxEvent.objects.filter(id=refused).update(tries=world.OUTBOX_ROWS_TRIES, error="WRONGTYPE")
    clock.advance(20 * DAY)
    write(settings, 1)
    bus(settings, None)
    clock.advance(10 * DAY)
    assert world.prune(KEEP)["outbox"] == 0
    clock.advance(1)
    assert world.prune(KEEP, dry_run=True)["outbox"] == 5
    assert len(numbers()) == 6
    assert world.prune(KEEP)["outbox"] == 5
    assert numbers() == [0]
    assert "outbox" not in world.prune({"journal": 0})


def test_what_waits_for_a_bus_that_is_away_stays_and_the_doctor_names_what_waits_for_none(
    settings: Any, clock: Any
) -> None:
    assert list(world.doctor_outbox()) == []
    write(settings, 3)
    clock.advance(999 * DAY)
    for dry_run in (True, False):
        assert world.prune(KEEP, dry_run=dry_run)["outbox"] == 0
    assert numbers() == [0, 1, 2]
    clock.advance(-999 * DAY)
    assert list(world.doctor_outbox()) == [], "the health of the bus says so"
    OutboxEvent.objects.filter(id=OutboxEvent.objects.latest("id").pk).update(tries=world.OUTBOX_ROWS_TRIES)
    clock.advance(90)
    bus(settings, None)
    (finding,) = [found for found in diagnosis.examine() if found.what.startswith("outbox")]
    assert finding.level == "warning"
    assert finding.what == "outbox: 3 events wait, the oldest for 90 s, and RAVI['EVENT_BUS'] is None"
    assert "ravi_prune" in finding.fix and "EVENT_BUS" in finding.fix


def test_publications_that_are_delivered_go_once_they_are_old(clock, monkeypatch):
    async def story(ctx, inbox): ...

    world.silence(monkeypatch, "fan_out_hint")
    world.patch(monkeypatch, "PRUNE_ROWS", 2)
    keep = {"publications": 30 * DAY}
    for _ in range(3):
        emit("news/a", "nobody follows")
    found, _ = follow(code(story), "news/b")
    under_way, waiting = emit("news/b", "under way"), emit("news/b", "in a digest")
    FeedItem.objects.create(follow=found, publication=waiting, due_at=world.now())
    Publication.objects.filter(id=waiting.id).update(done_at=world.now())
    clock.advance(30 * DAY)
    assert world.prune(keep)["publications"] == 0
    clock.advance(1)
    young = emit("news/a", "young")
    assert world.prune(keep, dry_run=True)["publications"] == 3
    assert world.prune(keep)["publications"] == 3
    assert set(Publication.objects.values_list("id", flat=True)) == {under_way.id, waiting.id, young.id}
    assert "publications" not in world.prune({"journal": 0})
