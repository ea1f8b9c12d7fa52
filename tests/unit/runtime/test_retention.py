"""RAVI["RETENTION"] of what people have said: sessions, runs, requests, audit records."""

from __future__ import annotations

from typing import Any

import pytest

import ravi_django
from ravi_django.kernel import IllegalTransitionError
from ravi_django.models import (
    AuditRecord,
    Blob,
    HumanRequest,
    InboxMessage,
    JournalEntry,
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
from tests.support.world import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

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


@pytest.mark.parametrize(
    ("kind", "goes"),
    [
        ("sessions", {"sessions": 1, "runs": 1, "requests": 1, "audit": 0}),
        ("runs", {"sessions": 0, "runs": 1, "requests": 1, "audit": 0}),
        ("requests", {"sessions": 0, "runs": 0, "requests": 1, "audit": 0}),
        ("audit", {"sessions": 0, "runs": 0, "requests": 0, "audit": 2}),
    ],
)
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
