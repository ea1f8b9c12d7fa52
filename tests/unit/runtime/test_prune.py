"""What is old goes, what lives stays, and what is pruned cannot go on from half of its past."""

import argparse
import asyncio
import time

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django.checks import check_settings
from ravi_django.kernel import ChatMessage, IllegalTransitionError, InvalidInputError
from ravi_django.management.commands.ravi_prune import duration
from ravi_django.models import (
    Ask,
    Blob,
    InboxMessage,
    JournalEntry,
    Run,
    Signal,
    Status,
    StreamArchive,
    StreamFrame,
    Turn,
)
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.cases import case
from tests.support.patience import BOUND_S
from tests.support.runs import (
    code,
    drive,
    in_background,
    leased,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    until,
)
from tests.support.world import DatabaseBuffer, Entry, NewTurn, retry

pytestmark = pytest.mark.django_db(transaction=True)

DAY = world.DAY_S
MONTH = dict.fromkeys(world.PRUNE_KINDS, 30 * DAY)


def ended(run=None, status=Status.COMPLETED, more=2):
    """A run with a journal, a turn, frames and a signal, at its end; the output is said."""
    run = run or make_run()
    lease = leased(run)
    world.append(lease, [Entry("run.started", "@started")])
    for place in range(more):
        world.append(lease, [Entry("tool.call", str(place + 1), "t", result={"x": place})])
    world.append(lease, [Entry("log", "log")], [NewTurn(run.session_id, run.agent, ChatMessage.of("user", "said"))])
    Signal.objects.create(run=run, name="read", consumed_at=lease.run.started_at)
    Signal.objects.create(run=run, name="unread")
    Ask.objects.create(asker=run, path="1", target=run, outcome="replied")
    if run.parent_id is None:
        StreamFrame.objects.bulk_create(StreamFrame(tree=run, seq=seq, body={"type": "x"}) for seq in range(1, 4))
    world.finish(lease, status, [Entry(f"run.{status}", f"@{status}.1")], output="the answer", error={"type": "E"})
    run.refresh_from_db()
    return run


def left(run):
    return {
        "journal": JournalEntry.objects.filter(run=run).count(),
        "frames": StreamFrame.objects.filter(tree=run).count(),
        "signals": sorted(Signal.objects.filter(run=run).values_list("name", flat=True)),
        "asks": Ask.objects.filter(asker=run).count(),
    }


ALL = {"journal": 5, "frames": 3, "signals": ["read", "unread"], "asks": 1}
NONE = {"journal": 0, "frames": 0, "signals": ["unread"], "asks": 0}


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
@pytest.mark.sqlite
def test_an_old_trees_rows_go_and_its_answer_and_conversation_stay(clock, status):
    run = ended(status=status)
    clock.advance(30 * DAY + 1)
    removed = world.prune(MONTH)
    assert left(run) == NONE
    others = "inbox archives ticks publications source_items outbox blobs accounts tickets files".split()
    assert removed == {"journal": 5, "signals": 1, "asks": 1, "frames": 3, **dict.fromkeys(others, 0)}
    assert Run.objects.get(id=run.id).output == "the answer"
    assert Turn.objects.filter(session_id=run.session_id).count() == 1
    assert InboxMessage.objects.filter(run=run).count() == 1


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.QUEUED, Status.CANCELLED)])
def test_a_tree_lives_as_long_as_any_run_of_it(clock, status):
    root = make_run()
    child = ended(make_run(parent=root, root=root, depth=1))
    grandchild = make_run(parent=child, root=root, depth=2, status=status)
    ended(root)
    JournalEntry.objects.create(
        run=grandchild, seq=1, path="1", kind="log", started_at=clock.now, finished_at=clock.now
    )
    alone = ended()
    Run.objects.filter(id=alone.id).update(status=status)
    clock.advance(30 * DAY - 1)
    assert set(world.prune(MONTH).values()) == {0}
    clock.advance(2 * DAY)
    world.prune({})
    assert left(root) == left(alone) == ALL
    world.prune(MONTH)
    terminal = status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
    assert JournalEntry.objects.count() == (0 if terminal else 16)
    assert left(root) == left(alone) == (NONE if terminal else ALL)
    assert set(world.prune(MONTH).values()) == {0}


def test_each_kind_has_its_own_time(clock):
    run = ended()
    clock.advance(10 * DAY)
    world.prune({"streams": 7 * DAY})
    assert left(run) == {**ALL, "frames": 1}
    world.prune({"journal": 7 * DAY})
    assert left(run) == {**NONE, "frames": 1}
    world.prune({"streams": 7 * DAY})
    assert left(run) == NONE


def test_a_dry_run_counts_what_would_go_and_removes_nothing(clock, django_user_model):
    run = ended()
    world.save_blobs([world.make_blob(b"[1]")])
    world.tickets_issue(django_user_model.objects.create_user("ann"))
    clock.advance(31 * DAY)
    would = world.prune(MONTH, dry_run=True)
    assert left(run) == ALL
    assert Blob.objects.count() == 1
    assert {**would, "frames": 3} == world.prune(MONTH)  # the last frame goes with the journal's end
    assert would["blobs"] == would["tickets"] == 1


def test_each_transaction_is_bounded_and_everything_goes(clock, monkeypatch):
    world.patch(monkeypatch, "PRUNE_ROWS", 3)
    world.patch(monkeypatch, "PRUNE_TREES", 2)
    sizes = []
    delete = world.prune_delete
    world.patch(monkeypatch, "prune_delete", lambda found: sizes.append(delete(found)) or sizes[-1])
    runs = [ended(more=4) for _ in range(5)]
    clock.advance(31 * DAY)
    removed = world.prune(MONTH)
    assert (removed["journal"], removed["frames"]) == (35, 15)
    assert max(sizes) == 3
    assert [left(run) for run in runs] == [NONE] * 5


def test_an_interrupted_prune_leaves_no_run_that_could_go_on_from_half_its_past(clock, monkeypatch):
    world.patch(monkeypatch, "PRUNE_ROWS", 3)
    run = ended(status=Status.FAILED, more=4)
    clock.advance(31 * DAY)
    assert world.prune_trees([run.id], world.journal_rows, 30 * DAY) == 3
    assert [row.seq for row in journal_of(run)] == [1, 2, 3, 4]
    with pytest.raises(IllegalTransitionError, match=f"the journal of run {run.id} was pruned"):
        world.store_retry(run.id)


def test_runs_that_were_pruned_before_cost_no_write(clock):
    for _ in range(3):
        ended()
    clock.advance(31 * DAY)
    world.prune(MONTH)
    with CaptureQueriesContext(connection) as asked:
        world.prune(MONTH)
    others = ("ravi_ticket", "ravi_ravifile")  # not of runs
    said = [query["sql"] for query in asked if not any(table in query["sql"] for table in others)]
    assert not [sql for sql in said if "FOR UPDATE" in sql or sql.startswith(("DELETE", "UPDATE"))]


def test_the_number_of_queries_does_not_rise_with_the_rows(clock):
    def counted(runs, more):
        for _ in range(runs):
            ended(more=more)
        clock.advance(31 * DAY)
        with CaptureQueriesContext(connection) as asked:
            world.prune(MONTH)
        return len(asked)

    assert counted(1, 1) == counted(20, 30)


@on_postgresql
@pytest.mark.parametrize("first", ["retry", "prune"])
def test_of_a_retry_and_a_prune_at_once_the_second_waits_and_leaves_the_run_alone(clock, first):
    run = ended(status=Status.FAILED)
    clock.advance(31 * DAY)
    with transaction.atomic():
        if first == "retry":
            world.store_retry(run.id)
            second = in_background(world.prune, MONTH)
        else:
            world.prune_trees([run.id], world.journal_rows, 30 * DAY)
            second = in_background(world.store_retry, run.id)
        until(somebody_waits_for_a_lock)
    if first == "retry":
        second.result(BOUND_S)
        assert left(run) == {**ALL, "journal": 6}
    else:
        assert isinstance(second.exception(BOUND_S), IllegalTransitionError)


def body(text):
    return world.make_blob(f'"{text}"'.encode())


@on_postgresql
def test_two_prunes_at_once_are_as_one(clock):
    for _ in range(20):
        ended()
    clock.advance(31 * DAY)
    removed = [found.result(BOUND_S) for found in [in_background(world.prune, MONTH) for _ in range(3)]]
    assert sum(one["journal"] for one in removed) == 100
    assert JournalEntry.objects.count() == 0


def generations(clock, run):
    """One row in each of three generations, ten days apart."""
    for place in range(3):
        lease = leased(run)
        world.append(lease, [Entry("tool.call", "1", "t")])
        if place < 2:
            world.continue_as_new(lease, [Entry("run.continued", "@on")], state=None, read_upto=0)
            clock.advance(10 * DAY)
    return run


def test_generations_that_are_over_go_the_present_one_stays_and_the_run_can_be_retried(clock):
    run = generations(clock, make_run())
    world.prune({"journal": 15 * DAY})
    assert list(JournalEntry.objects.values_list("generation", flat=True)) == [1, 1, 2]
    clock.advance(100 * DAY)
    assert world.prune({"journal": 15 * DAY})["journal"] == 1
    rows = JournalEntry.objects.filter(run=run).order_by("seq").values_list("generation", "kind")
    assert list(rows) == [(1, "run.continued"), (2, "tool.call")]  # by which the present one began: a lease reads it
    run.refresh_from_db()
    lease = world.Lease(run, run.lease_epoch, run.lease_owner)
    world.finish(lease, Status.FAILED, [Entry("run.failed", "@failed.9")], error={"type": "E"})
    assert world.store_retry(run.id).status == Status.PENDING


def test_bodies_that_nothing_names_go_after_a_day(clock, monkeypatch):
    world.patch(monkeypatch, "INLINE_BYTES", 100)
    run = make_run()
    lease = leased(run)
    named = {name: body(name) for name in ("digest", "spec")}
    world.save_blobs([*named.values(), body("nobody's")])
    big = {"text": "x" * 200}
    world.append(lease, [Entry("run.started", "@started", result={"spec": named["spec"].id})])
    world.append(lease, [Entry("tool.call", "1", "t", request={"arguments": big}, result={"other": "y" * 200})])
    world.append(lease, [Entry("llm.call", "2", "m", digests={"tools": named["digest"].id})])
    world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")])
    world.mark_many_published({str(run.id): (b"", 1)})
    clock.advance(DAY - 1)
    assert world.prune({})["blobs"] == 0
    clock.advance(2)
    assert world.prune({})["blobs"] == 1
    kept = set(Blob.objects.values_list("id", flat=True))
    assert len(kept) == 4
    assert kept > {one.id for one in named.values()}
    assert journal_of(run)[1].request == {"arguments": big}
    clock.advance(31 * DAY)
    removed = world.prune(MONTH)
    assert (removed["blobs"], removed["archives"]) == (4, 1)
    assert not StreamArchive.objects.exists()


def test_a_body_that_is_stored_again_is_young_again_and_many_go_in_batches(clock, monkeypatch):
    world.patch(monkeypatch, "PRUNE_BLOBS", 3)
    world.save_blobs([body(str(place)) for place in range(10)])
    clock.advance(2 * DAY)
    world.save_blobs([body("1"), body("1")])
    assert world.prune({})["blobs"] == 9
    assert Blob.objects.get().id == body("1").id


@on_postgresql
def test_a_body_stored_while_the_prune_looks_is_not_taken(clock):
    """Its row comes a moment later: without it, that would name nothing."""
    world.save_blobs([body("a")])
    clock.advance(2 * DAY)
    found = list(world.unreferenced_blobs())
    with transaction.atomic():
        world.save_blobs([body("a")])
        deleted = in_background(world.prune_blobs, found)
        until(somebody_waits_for_a_lock)
    assert deleted.result(BOUND_S) == 0
    assert Blob.objects.count() == 1


def test_a_process_stores_again_what_it_has_not_stored_for_hours(monkeypatch):
    saved, present = [], [1000.0]

    class Database:
        async def call(self, function, *args):
            saved.append(len(args[0]))

    monkeypatch.setattr(time, "monotonic", lambda: present[0])
    for hours in (0, 1, 7):
        present[0] = 1000.0 + hours * 3600
        asyncio.run(world.bodies_keep(Database(), {"d": lambda: {"a": 1}}))
    assert saved == [1, 1]
    world.bodies_forget()


def test_numbers_go_on_after_a_retry_of_a_run_whose_frames_went(clock, monkeypatch):
    world.patch(monkeypatch, "get_buffer", DatabaseBuffer)

    async def ask(ctx, inbox):
        return (await ctx.llm([ChatMessage.of("user", "hi")])).text

    async def fail(ctx, inbox):
        raise ValueError("no")

    ended_one = ended()
    world.mark_many_published({str(ended_one.id): (b"", 1)})
    code(fail)
    run = drive(make_run())
    last = world.events_page(run.id)[0][-1]["seq"]
    clock.advance(8 * DAY)
    world.prune({"streams": 7 * DAY})
    assert [frame["seq"] for frame in world.events_page(run.id)[0]] == [last]
    code(ask, model=ScriptedModel(["hello"]))
    retry(run.id, send=lambda run_id: None)
    drive(run)
    found, done = world.events_page(run.id, after=last)
    assert done
    assert [frame["seq"] for frame in found] == list(range(last + 1, last + 1 + len(found)))
    clock.advance(31 * DAY)
    world.prune(MONTH)
    assert world.events_page(ended_one.id) == ([], True), "a stream whose frames went is over"


def test_a_duration_is_a_number_and_a_unit():
    for text, seconds in (("30d", 30 * DAY), ("1.5h", 5400), ("90m", 5400), ("2w", 14 * DAY)):
        assert duration(text) == seconds
    for text in ("30", "d", "-1d", "1y", "30 d", "", "100000000w", "٣d", "1.d", "30d\n"):
        with case(text), pytest.raises(argparse.ArgumentTypeError, match="is not a duration such as 30d"):
            duration(text)


def test_the_setting_is_in_days_and_one_that_says_nothing_is_reported(settings):
    for given, kept in (
        (None, {}),
        (90, dict.fromkeys(world.PRUNE_KINDS, 90 * DAY)),
        ({"streams": 0.5}, {"streams": DAY / 2}),
        ({"journal": None, "streams": 7}, {"streams": 7 * DAY}),
    ):
        settings.RAVI = {**settings.RAVI, "RETENTION": given}
        with case(given):
            assert world.retention() == kept
            assert not [found for found in check_settings() if found.id == "ravi.E006"]
    for given in ("30d", -1, True, {"journals": 3}, {"journal": "3"}, [3]):
        settings.RAVI = {**settings.RAVI, "RETENTION": given}
        with case(given):
            with pytest.raises(InvalidInputError):
                world.retention()
            assert [found.id for found in check_settings()] == ["ravi.E006"]
