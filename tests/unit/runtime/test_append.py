"""The statement for PostgreSQL and the way through the ORM are one and the same write."""

from dataclasses import replace
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction
from django.forms.models import model_to_dict
from django.test.utils import CaptureQueriesContext

from ravi_django import submit
from ravi_django.kernel import ChatMessage, LeaseLostError, TextBlock, ToolUseBlock, Usage
from ravi_django.models import JournalEntry, Run, Session, Status, Turn, uuid7
from tests.support import world
from tests.support.runs import code, leased, make_run, message, on_postgresql
from tests.support.world import Entry, NewTurn

pytestmark = pytest.mark.django_db

USAGE = Usage(input_tokens=100, cached_tokens=40, output_tokens=30, reasoning_tokens=10)
NASTY = {"b": 1, "a": {"z": 1.0, "ä☃": [0.1 + 0.2, -0.0, 1e22, 5e-324, 2**63, None, True, ""]}, "quote": "'\\\"%s$1"}
MORE_COLUMNS = {
    **{"error": {"type": "X", "message": "ä"}, "digests": {"tools": "0123", "whole": "ff"}},
    **{"cost": 0.00012345, "read_upto": 7, "elapsed_s": 1.25},
}


BATCHES = {
    "one": [Entry("tool.call", "1", "t", request={"arguments": {}}, result={"content": []})],
    "empty columns": [Entry("log", "1")],
    "all columns": [
        Entry("llm.call", "turn1.1", "model/x", attempt=3, request=NASTY, result=NASTY, usage=USAGE, **MORE_COLUMNS)
    ],
    "many": [
        Entry("run.started", "@started", result={"spec": "x"}),
        Entry("now", "1", result="2030-01-01T00:00:00+00:00"),
        Entry("tool.call", "2", "t", phase="started", request={"arguments": NASTY}),
        Entry("llm.call", "3", "m", usage=USAGE, cost=None),
        Entry("llm.call", "4", "m", usage=USAGE, cost=0.5),
    ],
    "scalars": [
        Entry("log", str(number), result=value) for number, value in enumerate([0, False, "", [], {}, "null", 1.5])
    ],
}
TURNS = [
    ChatMessage.of("user", "hi"),
    ChatMessage(
        role="assistant",
        content=[TextBlock(text="ä☃'\"%s"), ToolUseBlock(tool_name="t", arguments=NASTY, call_id="c")],
        name="helper",
    ),
]


VENDORS = pytest.mark.parametrize("vendor", [connection.vendor, "another"])


def written(monkeypatch, vendor, entries, turns):
    """What lies in the database after the append, without the ids."""
    run = make_run()
    lease = leased(run)
    world.append(lease, [Entry("tool.call", "before", "t")], [NewTurn(run.session_id, run.agent, TURNS[0])])
    entries = [replace(entry, seq=0) for entry in entries]
    new = [NewTurn(run.session_id, run.agent, message) for message in turns]
    with monkeypatch.context() as patch:
        patch.setattr(connection, "vendor", vendor)
        first = world.append(lease, entries, new)
    own = ["id", "pk", "run", "session"]
    rows = [model_to_dict(row, exclude=own) for row in JournalEntry.objects.filter(run=run).order_by("seq")]
    said = [model_to_dict(turn, exclude=own) for turn in Turn.objects.filter(run=run).order_by("position")]
    sums = Run.objects.values(
        *("next_seq", "next_turn", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost"),
        *("cost_unknown", "usage_estimated", "crashes", "attempts", "status", "lease_epoch", "lease_owner"),
    ).get(id=run.id)
    position = Session.objects.values_list("next_position", flat=True).get(id=run.session_id)
    return {"first": first, "rows": rows, "turns": said, "sums": sums, "position": position}


@on_postgresql
@pytest.mark.parametrize("turns", [[], TURNS], ids=["no turns", "turns"])
@pytest.mark.parametrize("batch", BATCHES)
def test_the_statement_and_the_orm_write_the_same(clock, monkeypatch, batch, turns):
    by_statement = written(monkeypatch, connection.vendor, BATCHES[batch], turns)
    assert written(monkeypatch, "another", BATCHES[batch], turns) == by_statement


@pytest.mark.sqlite
def test_an_entry_reads_back_as_it_was_written(clock):
    (entry,) = BATCHES["all columns"]
    lease = leased()

    world.append(lease, [replace(entry, seq=0)])

    row = JournalEntry.objects.get()
    assert (row.seq, row.generation, row.epoch, row.path, row.attempt, row.phase) == (1, 0, 1, "turn1.1", 3, "result")
    assert (row.kind, row.name, row.request, row.result) == ("llm.call", "model/x", NASTY, NASTY)
    assert (row.error, row.digests) == (entry.error, entry.digests)
    tokens = (row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens)
    assert (tokens, row.cost) == ((100, 40, 30, 10), Decimal("0.00012345"))
    assert (row.read_upto, row.finished_at) == (7, clock.now)
    assert (row.finished_at - row.started_at).total_seconds() == 1.25


@pytest.mark.sqlite
def test_more_rows_than_one_statement_takes_are_written_all_the_same():
    lease = leased()
    count = world.MAX_ROWS + 5
    first = world.append(lease, [Entry("log", str(n)) for n in range(count)])
    assert first == 1
    assert list(JournalEntry.objects.order_by("seq").values_list("seq", flat=True)) == list(range(1, count + 1))
    assert world.append(lease, [Entry("log", "next")]) == count + 1


@pytest.mark.sqlite
def test_turns_get_positions_in_the_session_and_indexes_in_the_run():
    run = make_run()
    Session.objects.filter(id=run.session_id).update(next_position=40)
    lease = leased(run)

    world.append(lease, [Entry("log", "1")], [NewTurn(run.session_id, run.agent, turn) for turn in TURNS])
    world.append(lease, [Entry("log", "2")], [NewTurn(run.session_id, run.agent, TURNS[0])])

    assert list(Turn.objects.order_by("position").values_list("position", "index", "role", "name")) == [
        (40, 0, "user", ""),
        (41, 1, "assistant", "helper"),
        (42, 2, "user", ""),
    ]
    assert Turn.objects.get(position=41).content == TURNS[1].to_json()["content"]


@pytest.mark.sqlite
@VENDORS
def test_a_turn_refers_to_no_row_that_another_commit_may_not_have_written(monkeypatch, vendor):
    """Else it would have the blocks of the row that got that number."""
    lease = leased()
    answer = ChatMessage.of("assistant", "4")
    here, elsewhere = (Entry("llm.call", path, result=answer.to_json()) for path in ("1", "2"))
    elsewhere.seq = 1  # under which it was tried
    new = [NewTurn(lease.run.session_id, lease.run.agent, answer, entry) for entry in (here, elsewhere)]
    with monkeypatch.context() as patch:
        patch.setattr(connection, "vendor", vendor)
        world.append(lease, [here], new)
    turns = Turn.objects.whole()
    assert [turn.entry_seq for turn in turns] == [1, None]
    assert [(turn.by, turn.blocks) for turn in turns] == [(lease.run.agent, answer.to_json()["content"])] * 2


@on_postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turns", [[], TURNS], ids=["no turns", "turns"])
def test_an_append_is_one_statement_and_one_commit(turns):
    """Django would show a BEGIN or a SAVEPOINT here. The server's own count of commits also has its other databases."""
    lease = leased()
    new = [NewTurn(lease.run.session_id, lease.run.agent, message) for message in turns]
    with CaptureQueriesContext(connection) as captured:
        world.append(lease, [replace(entry, seq=0) for entry in BATCHES["many"]], new)
    assert [query["sql"].split()[:2] for query in captured] == [["WITH", "fence"]]


@pytest.mark.sqlite
@VENDORS
@pytest.mark.parametrize("change", [{"epoch": 0}, {"owner": "somebody else"}], ids=["epoch", "owner"])
def test_a_refused_append_writes_nothing(monkeypatch, vendor, change):
    lease = leased()
    zombie = replace(lease, **change)
    monkeypatch.setattr(connection, "vendor", vendor)
    with pytest.raises(LeaseLostError, match=f"run {lease.run_id}: lease epoch {zombie.epoch} has ended"):
        world.append(zombie, BATCHES["many"], [NewTurn(lease.run.session_id, lease.run.agent, TURNS[0])])
    assert not JournalEntry.objects.exists()
    assert not Turn.objects.exists()
    assert Session.objects.get().next_position == 0


def statements(function, *args, **kwargs):
    with CaptureQueriesContext(connection) as captured:
        function(*args, **kwargs)
    words = [query["sql"].split()[0] for query in captured]
    return [word for word in words if word not in ("SAVEPOINT", "RELEASE")]


@on_postgresql
def test_how_many_statements_a_run_costs_beside_its_effects(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")
    code(world.claim)
    lease, run = leased(), make_run()
    assert statements(submit, "test/code", "hello") == ["SELECT", "WITH"]
    assert statements(world.claim, run.id, "w") == ["WITH"]
    ended = statements(world.finish, lease, Status.COMPLETED, [Entry("run.completed", "@end")])
    assert ended == ["WITH", "SELECT", "SELECT"], "the append, the session's lock, who is queued"


@on_postgresql
def test_a_run_that_is_there_already_leaves_the_callers_transaction_usable():
    first = make_run()
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            world.create_run(Run(id=first.id, agent=first.agent), message(), Session(agent=first.agent))
        world.create_run(Run(id=uuid7(), agent=first.agent), message(), Session(agent=first.agent))
    assert (Run.objects.count(), Session.objects.count()) == (2, 2)


@on_postgresql
@VENDORS
def test_what_is_changed_beside_an_append_goes_before_what_an_append_changes_itself(monkeypatch, vendor):
    lease = leased()
    monkeypatch.setattr(connection, "vendor", vendor)
    world.requeue(lease, [Entry("tool.call", "1", "t")], delay_s=5, attempts=3, for_release="r9")
    run = Run.objects.get(id=lease.run_id)
    assert (run.status, run.attempts, run.release, run.for_release, run.lease_owner) == ("pending", 3, "r9", "r9", "")
    assert run.wake_at is not None


@on_postgresql
@VENDORS
def test_an_end_that_was_woken_in_between_sees_what_woke_it(monkeypatch, vendor):
    lease = leased()
    Run.objects.filter(id=lease.run_id).update(read_upto=10**9)
    world.touch([lease.run_id])
    monkeypatch.setattr(connection, "vendor", vendor)
    first, _ = world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@end")], output="x")
    run = Run.objects.get(id=lease.run_id)
    assert (first, run.status, run.output, run.next_seq) == (1, Status.COMPLETED, "x", 2)
