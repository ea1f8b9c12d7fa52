"""A deleted user's data: all of it goes, nobody else's does, whatever is interrupted."""

import io
import json
from random import Random
from typing import Any

import pytest
import redis
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.utils import timezone

from ravi_django import emit
from ravi_django.kernel import LeaseLostError
from ravi_django.models import (
    AuditRecord,
    Blob,
    Erasure,
    FeedItem,
    Follow,
    HumanRequest,
    JournalEntry,
    OutboxEvent,
    Publication,
    RaviFile,
    Reservation,
    Run,
    Schedule,
    ScheduleTick,
    Session,
    Signal,
    Source,
    SourceItem,
    Status,
    StreamArchive,
    StreamFrame,
    Ticket,
    Turn,
)
from ravi_django.models.people import Delegation
from ravi_django.models.run import Ask
from ravi_django.testing import FakeClock
from tests.acceptance.access import world
from tests.support import world as door
from tests.support.asked import approval_of
from tests.support.runs import code, drive, leased, make_run, take_over
from tests.support.world import Entry, cancel, store_big_values

pytestmark = pytest.mark.django_db(transaction=True)

MODELS = list(apps.get_app_config("ravi").get_models())
Rows = set[tuple[str, str]]


@pytest.fixture
def bob() -> Any:
    return get_user_model().objects.create_superuser("bob")


def everything() -> Rows:
    return {
        (model._meta.label_lower, json.dumps(row.pk, default=str))
        for model in MODELS
        for row in model._default_manager.all()
    }


def world_of_owner() -> world.World:
    """A row of each table that may be a user's."""
    found = world.make()
    run, owner, now = found.run, found.people["owner"], timezone.now()
    session = Session.objects.create(parent_session=run.session, owner=owner)
    child = make_run(owner=owner, parent=run, root=run, depth=1, session=session)
    Session.objects.create(owner=owner)
    news = {"digest": "d0", "body": {}}
    Publication.objects.create(topic="news/own", message_id="2", scope="7e", owner=owner, done_at=now, **news)
    Publication.objects.filter(scope="5c").update(done_at=now)
    systems = Publication.objects.create(topic="news/x", message_id="3", scope="0d", **news)
    FeedItem.objects.create(follow=Follow.objects.get(), publication=systems, due_at=now)
    Signal.objects.create(run=run, name="go", payload="x")
    Ask.objects.create(asker=run, target=child, path="a")
    Reservation.objects.create(run=run, path="a")
    StreamFrame.objects.create(tree=run, seq=1, body={})
    StreamArchive.objects.create(tree=run, body=b"")
    Turn.objects.create(session=run.session, agent="a/b", position=0, role="user", content=[])
    OutboxEvent.objects.create(topic="events", body={"data": {"owner": str(owner.pk)}})
    ScheduleTick.objects.create(schedule=found.rows["schedule"], at=now)
    Delegation.objects.create(user=owner, delegate=found.people["clerk"])
    Ticket.objects.create(id="7e", user=owner, expires_at=now, ends_at=now)
    blob = Blob.objects.create(id="b0", body=b'"big"', size=5)
    value = {"result": {"$blob": blob.id, "size": 5}, "started_at": now, "finished_at": now}
    JournalEntry.objects.create(run=child, seq=child.next_seq, path="@y", kind="log", **value)
    Run.objects.filter(id=child.id).update(next_seq=child.next_seq + 1)
    return found


KEPT_BACK = {"ravi.ticket", "ravi.streamarchive"}  # not exported


def test_every_model_says_what_becomes_of_it() -> None:
    known = [*(table.model for table in door.PERSONAL_TABLES), *door.PERSONAL_OTHERS]
    assert sorted(map(str, known)) == sorted(map(str, MODELS))


@pytest.mark.sqlite
@pytest.mark.parametrize("by", ["deletion", "queryset", "command"])
def test_what_is_exported_is_what_is_erased(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    door.patch(monkeypatch, "PRUNE_ROWS", 1)  # each table takes several transactions
    owner = world_of_owner().people["owner"]
    key, before, out = owner.pk, everything(), io.StringIO()
    call_command("ravi_export", "owner", stdout=out)
    exported = {(row["model"], json.dumps(row["pk"])) for row in json.loads(out.getvalue())}
    match by:
        case "deletion":
            owner.delete()
        case "queryset":
            get_user_model().objects.filter(pk=key).delete()
        case "command":
            call_command("ravi_erase", "owner")
    assert not RaviFile.objects.present().exists()
    door.erasing_sweep()
    door.delete_unused()
    clock.advance(door.BODIES_S + 1)
    door.erasing_sweep()
    after = everything()
    audits = {
        ("ravi.auditrecord", json.dumps(pk, default=str)) for pk in AuditRecord.objects.values_list("pk", flat=True)
    }
    assert exported == {row for row in before - after if row[0] not in KEPT_BACK} | (audits & before)
    personal = {table.model._meta.label_lower for table in door.PERSONAL_TABLES} | {"ravi.blob"}
    assert {label for label, _ in exported} == personal - KEPT_BACK
    assert {row for row in after - before if row[0] != "ravi.rollup"} <= audits
    assert get_user_model().objects.filter(pk=key).exists() == (by == "command")
    assert not AuditRecord.objects.filter(owner=key).exists()


@pytest.mark.parametrize("step", range(1, 40, 8))
def test_the_sweep_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    world_of_owner().people["owner"].delete()
    some, calls = door.erasures_some, []

    def dies(*args: Any) -> int:
        calls.append(args)
        if len(calls) == step:
            raise KeyboardInterrupt
        return some(*args)

    door.patch(monkeypatch, "erasures_some", dies)
    with pytest.raises(KeyboardInterrupt):
        door.erasing_sweep()
    door.patch(monkeypatch, "erasures_some", some)
    door.erasing_sweep()
    assert not any(model.objects.exists() for model in (Session, Run, JournalEntry, HumanRequest, Erasure))


@pytest.mark.sqlite
@pytest.mark.parametrize("is_one_tree", [False, True])
def test_one_sweep_erases_a_part_of_a_big_conversation(ada: Any, monkeypatch: Any, is_one_tree: bool) -> None:
    door.patch(monkeypatch, "ERASING_SWEPT", 5)
    session = Session.objects.create(owner=ada)
    of: dict[str, Any] = {}
    for _ in range(10):
        run = make_run(owner=ada, session=session, status=Status.COMPLETED, **of)
        of = of or ({"parent": run, "root": run, "depth": 1} if is_one_tree else {})
    door.delete_session(session.id)
    left = []
    while not left or left[-1]:
        door.erasing_sweep()
        left.append(Run.objects.count())
    assert left == [6, 2, 0]
    assert not (Session.objects.exists() or Erasure.objects.exists())


def test_a_run_at_work_is_cancelled_first_and_writes_nothing_afterwards(ada: Any, clock: FakeClock) -> None:
    seen: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        if not seen:
            await ctx.recorder.database.call(ada.delete)
            await ctx.recorder.database.call(door.erasing_sweep)
        seen.append(await ctx.recorder.database.call(Run.objects.count))
        await ctx.sleep_until_signal("never")

    code(story)
    run = make_run(owner=ada, session=Session.objects.create(owner=ada))
    zombie = leased(run)
    clock.advance(31)
    run = drive(run, dies=1)
    assert (run.status, seen) == (Status.RUNNING, [1])
    assert take_over(clock, run).status == Status.CANCELLED
    door.erasing_sweep()
    with pytest.raises(LeaseLostError):
        door.append(zombie, [Entry("log", "late")])
    assert not (Run.objects.exists() or JournalEntry.objects.exists() or Session.objects.exists())


@pytest.mark.sqlite
def test_others_rows_stay_and_only_the_name_goes(ada: Any, bob: Any) -> None:
    ada.is_superuser = ada.is_staff = True
    ada.save()
    code(lambda ctx, inbox: None, tools=[])
    run = make_run(owner=bob, session=Session.objects.create(owner=bob, title="by ada"))
    request = approval_of(run, to=[("user:ada", 60), ("user:adam", 60)], arguments={"to": "ada", "amount": 5})
    door.answer(request, "approve", reason="ada says so", sticky=True, by=ada)
    cancel(run.id, "enough")
    OutboxEvent.objects.create(topic="events", body={"data": {"by": "ada", "text": "ada"}})
    words = "Reassigned from user:ada to user:adam (in place of ada)"
    entry = LogEntry.objects.create(user=bob, action_flag=CHANGE, object_repr="x", change_message=words)
    before = everything()
    ada.delete()
    door.erasing_sweep()
    assert everything() == before
    request, bobs = HumanRequest.objects.get(), AuditRecord.objects.filter(name="answered").get()
    pseudonym = request.answer["by"]
    assert pseudonym.startswith("deleted-")
    assert request.to == f"user:{pseudonym}"
    assert [step["to"] for step in request.steps] == [f"user:{pseudonym}", "user:adam"]
    assert (request.arguments["to"], request.answer["reason"]) == ("ada", "ada says so")
    assert (bobs.detail["by"], bobs.detail["to"], bobs.owner) == (pseudonym, f"user:{pseudonym}", bob)
    entry.refresh_from_db()
    assert entry.change_message == f"Reassigned from user:{pseudonym} to user:adam (in place of {pseudonym})"
    assert request.sticky.get().decided_by_name == pseudonym
    assert OutboxEvent.objects.get().body == {"data": {"by": pseudonym, "text": "ada"}}


def test_a_later_user_of_the_name_keeps_it(ada: Any, bob: Any, clock: FakeClock) -> None:
    ada.delete()
    clock.advance(1)
    request = approval_of(make_run(owner=bob), to="user:ada")
    HumanRequest.objects.update(created_at=clock.now)
    door.erasing_sweep()
    request.refresh_from_db()
    assert request.to == "user:ada"


@pytest.mark.sqlite
def test_the_name_is_looked_for_in_batches_that_deletions_share(ada: Any, bob: Any, monkeypatch: Any) -> None:
    door.patch(monkeypatch, "NAMES_ROWS", 2)
    users = [ada, get_user_model().objects.create_user('b"öb')]
    requests = [approval_of(make_run(owner=bob), to=f"user:{users[place % 2].get_username()}") for place in range(5)]
    Run.objects.update(status=Status.COMPLETED)
    get_user_model().objects.filter(pk__in=[user.pk for user in users]).delete()
    door.erasing_work()
    assert {request.to.startswith("user:deleted-") for request in HumanRequest.objects.all()} == {True}
    opened = AuditRecord.objects.values_list("detail", flat=True)
    assert {detail["to"].startswith("user:deleted-") for detail in opened} == {True}
    assert (len(requests), Erasure.objects.count()) == (5, 0)


@pytest.mark.sqlite
@pytest.mark.parametrize("policy", ["erase", "anonymize", "keep"])
def test_the_setting_says_what_becomes_of_the_data(ada: Any, settings: Any, policy: str) -> None:
    settings.RAVI = {**settings.RAVI, "ON_USER_DELETE": policy}
    run = make_run(owner=ada, session=Session.objects.create(owner=ada, title="mine"))
    request = approval_of(run, to="user:ada", text="Pay ACME?")
    cancel(run.id, "cancelled by ada")
    ada.delete()
    door.erasing_sweep()
    opened = AuditRecord.objects.filter(name="opened").get()
    assert (opened.owner_id, opened.detail["arguments_hash"]) == (None, request.arguments_hash)
    assert Session.objects.filter(title="mine").exists() == (policy != "erase")
    assert ("text" in opened.detail, "arguments" in opened.detail) == ((policy != "erase",) * 2)
    assert (opened.detail["to"] == "user:ada") == (policy == "keep")
    if policy != "erase":
        assert (Run.objects.get().cancel_reason == "its owner was deleted", Run.objects.get().owner) == (True, None)
        assert (HumanRequest.objects.get().to == "user:ada") == (policy == "keep")


@pytest.mark.sqlite
def test_bodies_go_though_they_are_young_unless_others_have_them(ada: Any, bob: Any, clock: FakeClock) -> None:
    def said(user: Any, *values: str) -> None:
        lease = leased(make_run(owner=user, session=Session.objects.create(owner=user)))
        door.append(lease, [Entry("log", value[:9], result={"text": value}) for value in values])

    a, b, c = "a" * 100_000, "b" * 100_000, Random(1).randbytes(400_000).hex()
    d = Random(2).randbytes(400_000).hex()
    said(ada, a, b, c, d)
    said(bob, b)
    Run.objects.update(status=Status.COMPLETED)
    ada.delete()
    door.erasing_sweep()
    said(bob, c)  # stored again
    store_big_values([Entry("log", "late", result={"text": d})])  # again, and its row is still to come
    clock.advance(door.BODIES_S + 1)
    door.erasing_sweep()
    assert Blob.objects.count() == 3
    assert not Blob.objects.filter(erase_at__isnull=False).exists()


def test_what_valkey_has_of_the_runs_goes(ada: Any, settings: Any, valkey_url: str) -> None:
    settings.RAVI = {**settings.RAVI, "STREAM_URL": valkey_url}
    run = make_run(owner=ada, session=Session.objects.create(owner=ada))
    with redis.Redis.from_url(valkey_url) as client:
        for key in "msk":
            client.set(f"ravi:{{{run.id}}}:{key}", "x")
        client.set("other", "x")
        ada.delete()
        door.erasing_sweep()
        assert client.keys() == [b"other"]


def test_what_the_user_makes_behind_an_unfinished_erasure_stays() -> None:
    owner = world_of_owner().people["owner"]
    session = Session.objects.create(owner=owner)
    lease = leased(make_run(owner=owner, session=session))
    with pytest.raises(CommandError):
        call_command("ravi_erase", "owner")
    follow = Follow.objects.create(agent="a/b", topic="news/y", follower="f", owner=owner)
    schedule = Schedule.objects.create(name="n", agent="a/b", input="hi", every_s=60, owner=owner)
    ScheduleTick.objects.create(schedule=schedule, at=timezone.now())
    source = Source.objects.create(name="n", location="https://example.com/feed", agent="a/b", owner=owner)
    SourceItem.objects.create(source=source, identity="i", digest="d")
    file = RaviFile.objects.create(owner=owner, size=1)
    emitted = emit("news/z", "later", user=owner, id="once")
    sent_by = {"done_at": timezone.now(), "digest": "d0", "body": {"sender": {"type": "a", "key": "b"}}}
    Publication.objects.create(topic="news/z", scope="1a7e", owner=owner, run_id=lease.run_id, **sent_by)
    run, at = make_run(), timezone.now()
    audit = AuditRecord.objects.create(owner=owner, run_id=run.id, session_id=run.session_id, detail={"text": "later"})
    answered = HumanRequest.objects.create(run=run, answered_by=owner, answered_at=at)
    Run.objects.filter(id=lease.run_id).update(status=Status.CANCELLED)
    door.erasing_sweep()
    assert not Erasure.objects.exists()
    assert (RaviFile.objects.get(owner=owner), HumanRequest.objects.get(answered_by=owner)) == (file, answered)
    assert list(AuditRecord.objects.filter(owner=owner).values_list("detail", flat=True)) == [audit.detail]
    assert (Follow.objects.get(), Schedule.objects.get(), Source.objects.get()) == (follow, schedule, source)
    assert (ScheduleTick.objects.count(), SourceItem.objects.count()) == (1, 1)
    assert emit("news/z", "later", user=owner, id="once") == emitted
    assert not Publication.objects.filter(scope="1a7e").exists()


def test_the_command_says_what_still_runs(ada: Any) -> None:
    lease = leased(make_run(owner=ada, session=Session.objects.create(owner=ada)))
    with pytest.raises(CommandError, match=r"have not ended.*; no worker "):
        call_command("ravi_erase", "ada")
    door.worker_seen("w", 0)
    with pytest.raises(CommandError) as said:
        call_command("ravi_erase", "ada")
    assert "no worker" not in str(said.value), said.value
    assert Run.objects.get(id=lease.run_id).cancel_requested_at is not None
