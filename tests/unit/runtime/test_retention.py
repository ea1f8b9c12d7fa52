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
from ravi_django.runtime import human, prune, store
from ravi_django.runtime.entries import Entry
from ravi_django.runtime.store import erasures
from ravi_django.testing import FakeClock
from tests.support.asked import approval_of
from tests.support.runs import code, leased, make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

DAY = prune.DAY_S
COUNTED = {"sessions": Session, "runs": Run, "requests": HumanRequest, "audit": AuditRecord}


def counts() -> dict[str, int]:
    return {name: model.objects.count() for name, model in COUNTED.items()}


def ended(status: Status = Status.COMPLETED, session: Session | None = None) -> Run:
    """A run with a request that was answered, a turn, and a journal with a big value."""
    run = make_run(session=session)
    human.answer(approval_of(run), "deny", reason="no")
    lease = leased(run)
    store.append(lease, [Entry("log", "x", result={"text": str(run.id) * 10_000})])
    store.finish(lease, status, [Entry(f"run.{status}", "@end")], error=None)
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
    keep = prune.retention({kind: 5})

    dry = prune.prune(keep, dry_run=True)
    assert (counts(), dry[kind]) == (before, goes[kind])
    assert prune.prune(keep)[kind] == goes[kind]

    assert counts() == {name: count - goes[name] for name, count in before.items()}
    left = list(AuditRecord.objects.order_by("id").values_list("detail", flat=True))
    assert left == details[goes["audit"] :]
    assert Turn.objects.count() == 2 - goes["sessions"]
    assert JournalEntry.objects.filter(kind="log").count() == InboxMessage.objects.count() == 2 - goes["runs"]
    assert prune.prune(keep)[kind] == 0
    clock.advance(3601)
    prune.prune({})
    assert Blob.objects.count() == 2 - goes["runs"]


def test_a_number_is_not_for_them(clock: FakeClock) -> None:
    ended()
    clock.advance(10 * DAY)
    before = counts()

    prune.prune(prune.retention(5))

    assert counts() == before


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

    prune.prune(prune.retention({"sessions": 5}))
    assert counts() == before

    Run.objects.filter(id=live.id).update(session=session, status=Status.CANCELLED, finished_at=clock.now)
    prune.prune(prune.retention({"sessions": 5}))
    assert counts() == before
    prune.prune(prune.retention({"requests": 5}))
    assert HumanRequest.objects.get().run.status == Status.FAILED


def test_an_old_run_is_not_retried_while_it_goes(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    run, erase = ended(Status.FAILED), erasures.erase_trees
    clock.advance(10 * DAY)

    def late(roots: Any, **more: Any) -> None:
        with pytest.raises(IllegalTransitionError, match="pruned"):
            store.retry(run.id)
        erase(roots, **more)

    monkeypatch.setattr(erasures, "erase_trees", late)
    prune.prune(prune.retention({"runs": 5}))

    assert not Run.objects.exists()
