"""A failed or blocked run that a person has retried goes on from its journal."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from ravi_django.kernel import ChatMessage, IllegalTransitionError, ModelError
from ravi_django.models import HumanRequest, JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.runs import code, drive, every_death, in_background, leased, make_run, on_postgresql, take_over
from tests.support.world import DatabaseBuffer, Entry, cancel, retry

pytestmark = pytest.mark.django_db(transaction=True)

USER = ChatMessage.of("user", "hi")
WRONG_KEY = ModelError("wrong key", type="AuthenticationError", status=401)


def model_failing(times, error=WRONG_KEY, then="hello"):
    left = [times]

    def say(messages, options):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return then

    return ScriptedModel([say])


async def ask(ctx, inbox):
    return (await ctx.llm([USER])).text


def again(run):
    """Retried by a person, and driven."""
    retry(run.id, send=lambda run_id: None)
    return drive(run)


def failed(run=None, error=None):
    run = run or make_run()
    world.finish(leased(run), Status.FAILED, [Entry("run.failed", "@failed.1")], error=error or {"type": "E"})
    run.refresh_from_db()
    return run


def rows(run):
    return [(row.seq, row.path, row.attempt, row.kind) for row in journal_of(run) if not row.path.startswith("@")]


@pytest.mark.sqlite
def test_a_failed_run_is_pending_again_with_everything_of_its_failure_gone(clock):
    run = failed()
    Run.objects.filter(id=run.id).update(
        attempts=4, crashes=3, cancel_requested_at=clock.now, cancel_reason="x", published_at=clock.now, hints=5
    )
    found = world.store_retry(run.id)
    assert (found.id, found.status, found.attempts, found.crashes, found.hints) == (run.id, Status.PENDING, 0, 0, 0)
    assert (found.error, found.finished_at, found.published_at) == (None, None, None)
    assert (found.cancel_requested_at, found.cancel_reason) == (None, "")
    row = JournalEntry.objects.get(kind="run.retried")
    assert (row.seq, row.path, row.epoch, row.result) == (run.next_seq, "@retried.2", 2, {"supersedes": []})
    assert (found.next_seq, found.lease_epoch) == (run.next_seq + 1, 2)
    assert leased(found).epoch == 3


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.FAILED, Status.BLOCKED)])
def test_in_any_other_state_it_is_a_conflict_and_nothing_changes(status):
    run = failed()
    Run.objects.filter(id=run.id).update(status=status)
    before = Run.objects.filter(id=run.id).values().get()
    with pytest.raises(IllegalTransitionError, match=f"run {run.id} is {status}; only a failed or a blocked run"):
        world.store_retry(run.id)
    assert Run.objects.filter(id=run.id).values().get() == before
    assert JournalEntry.objects.filter(kind="run.retried").count() == 0


@pytest.mark.sqlite
def test_it_is_queued_behind_the_active_run_of_its_agent_in_the_session_and_a_worker_is_told_when_it_may_start():
    run, sent = failed(), []
    make_run("test/other", session=run.session)
    active = make_run(session=run.session)
    retry(run.id, send=sent.append)
    assert (Run.objects.get(id=run.id).status, sent) == (Status.QUEUED, [])
    world.finish(leased(active), Status.COMPLETED, [])
    assert Run.objects.get(id=run.id).status == Status.PENDING
    alone = failed()
    make_run("test/other", session=alone.session)
    retry(alone.id, send=sent.append)
    assert (Run.objects.get(id=alone.id).status, sent) == (Status.PENDING, [alone.id])
    with pytest.raises(Run.DoesNotExist):
        world.store_retry(uuid4())


@on_postgresql
def test_of_two_at_once_one_is_a_conflict():
    run = failed()
    outcomes = [in_background(world.store_retry, run.id) for _ in range(2)]
    errors = [outcome.exception(20) for outcome in outcomes]
    assert sorted(error is None for error in errors) == [False, True]
    assert JournalEntry.objects.filter(kind="run.retried").count() == 1


def test_a_blocked_child_can_be_retried_unless_its_parent_has_ended_and_a_failed_one_cannot():
    root = make_run()
    blocked, other, ended = (make_run(parent=root, root=root, depth=1) for _ in range(3))
    for run in (blocked, other):
        world.journal_block(leased(run), [Entry("run.blocked", "@blocked.1")], error={})
    failed(ended)
    assert world.store_retry(blocked.id).status == Status.PENDING
    with pytest.raises(IllegalTransitionError, match=f"retry the root run {root.id}"):
        world.store_retry(ended.id)
    Run.objects.filter(id=root.id).update(status=Status.FAILED)
    with pytest.raises(IllegalTransitionError, match="the parent of run"):
        world.store_retry(other.id)


def test_a_deadline_that_has_passed_is_said_and_seconds_count_from_the_first_start_unless_they_are_over(clock):
    run = failed(make_run(deadline=clock.now + timedelta(seconds=60)))
    early, late = (failed(make_run(budget={"deadline_s": 60})) for _ in range(2))
    begun = clock.now
    clock.advance(59)
    assert world.store_retry(early.id).started_at == begun
    clock.advance(2)
    assert world.store_retry(late.id).started_at == clock.now
    with pytest.raises(IllegalTransitionError, match=r"the deadline of run .* passed at 2030-01-01 00:01:00 UTC"):
        world.store_retry(run.id)
    clock.advance(-2)
    assert world.store_retry(run.id).status == Status.PENDING


def test_the_failing_call_is_made_again_as_its_next_attempt_and_the_rest_is_not(clock, ran, step):
    async def work(ctx, inbox):
        await ctx.tool("step", name="one")
        said = await ctx.llm([USER])
        await ctx.tool("step", name="two")
        return said.text

    model = model_failing(1)
    code(work, model=model, tools=[step])
    run = drive(make_run())
    assert (run.status, run.error) == (Status.FAILED, {"type": "AuthenticationError", "message": "wrong key"})
    again(run)
    assert (run.status, run.output) == (Status.COMPLETED, "hello")
    assert (ran, len(model.calls)) == (["one", "two"], 2)
    tool, llm = "tool.call", "llm.call"
    assert rows(run) == [(2, "1", 1, tool), (3, "2", 1, llm), (7, "2", 2, llm), (8, "3", 1, tool)]
    assert journal_of(run)[4].result == {"supersedes": [3]}


def test_a_worker_that_dies_before_or_after_the_retry_costs_no_call_twice(clock):
    async def twice(ctx, inbox):
        await ctx.llm([USER])
        return (await ctx.llm([USER])).text

    def story(drive):
        model = model_failing(1)
        models.append(model)
        code(twice, model=model)
        run = drive(make_run())
        if run.status == Status.FAILED:
            retry(run.id, send=lambda run_id: None)
            run = drive(run)
        return run

    models = []
    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "hello")
        lost = death.lost("llm.call")
        assert len(models[-1].calls) == 3 + lost - (death.at == 1) * lost
        attempts = [("1", 1), ("1", 2), ("2", 1)] if death.at > 1 or not lost else [("1", 1), ("2", 1)]
        assert [row[1:3] for row in rows(run)] == attempts


def test_the_code_was_mended(clock):
    """No row of the journal failed or blocked it: nothing is superseded, and the recorded call stands."""

    async def broken(ctx, inbox):
        await ctx.llm([USER])
        raise ValueError("a bug")

    async def other(ctx, inbox):
        return await ctx.tool("none", name="x")

    for wrong, status, dies in ((broken, Status.FAILED, None), (other, Status.BLOCKED, "end")):
        model = ScriptedModel(["hello"])
        code(broken if dies is None else ask, model=model)
        run = drive(make_run(), dies=dies)
        if dies:
            code(wrong, model=model)
            take_over(clock, run)
        assert run.status == status
        code(ask, model=model)
        again(run)
        assert (run.status, run.output, len(model.calls)) == (Status.COMPLETED, "hello", 1)
        assert JournalEntry.objects.get(run=run, kind="run.retried").result == {"supersedes": []}


async def noting(ctx, inbox):
    try:
        said = await ctx.llm([USER])
    except ModelError:
        await ctx.log("failed")
        raise
    await ctx.tool("none")
    return said.text


async def both(ctx, inbox):
    done = await asyncio.gather(ctx.llm([USER]), ctx.llm([USER]), return_exceptions=True)
    for one in done:
        if isinstance(one, Exception):
            raise one
    return done[0].text


@pytest.mark.parametrize(("work", "failures"), [(noting, 1), (both, 2)])
def test_parallel_failures_and_notes_of_a_failure_are_superseded_with_it(clock, work, failures):
    code(work, model=model_failing(failures))
    run = drive(make_run())
    again(run)
    assert (run.status, run.output) == (Status.COMPLETED, "hello")
    effects = JournalEntry.objects.filter(
        kind__in=["llm.call", "log"], seq__lt=5
    )  # of two branches, either may be first
    assert JournalEntry.objects.get(kind="run.retried").result == {"supersedes": sorted(row.seq for row in effects)}
    assert len(effects) == 2


def test_what_another_branch_recorded_after_the_failure_stays(clock, ran, step):
    async def both(ctx, inbox):
        async def late():
            while not failures:
                await asyncio.sleep(0)
            await ctx.tool("step", name="late")

        async def calling():
            try:
                return (await ctx.llm([USER])).text
            except ModelError:
                failures.append(1)
                raise

        said, _ = await asyncio.gather(calling(), late(), return_exceptions=True)
        if isinstance(said, Exception):
            raise said
        return said

    failures = []
    code(both, model=model_failing(1), tools=[step])
    run = drive(make_run())
    assert (run.status, ran) == (Status.FAILED, ["late"])
    again(run)
    assert (run.status, run.output, ran) == (Status.COMPLETED, "hello", ["late"])


def test_a_failure_that_the_code_went_on_from_is_part_of_the_past(clock, ran, step):
    """The tool was called because of it: with the error gone, the code would ask for something else there."""

    async def cleaning(ctx, inbox):
        try:
            return (await ctx.llm([USER])).text
        except ModelError:
            await ctx.tool("step", name="clean up")
            raise

    code(cleaning, model=model_failing(1), tools=[step])
    run = again(drive(make_run()))
    assert (run.status, run.error["type"], ran) == (Status.FAILED, "AuthenticationError", ["clean up"])


def test_what_people_were_still_asked_is_open_again():
    run = make_run()
    lease = leased(run)
    world.append(lease, [Entry("tool.call", path, "t", phase="started") for path in ("1", "2")])
    world.append(lease, [Entry("tool.call", "2", "t")])
    wanted, settled, answered = (
        HumanRequest.objects.create(run=run, path=path, attempt=attempt, kind="uncertain", answer=answer)
        for path, attempt, answer in (("1", 1, None), ("2", 1, None), ("1", 2, {"outcome": "fail"}))
    )
    world.finish(lease, Status.FAILED, [Entry("run.failed", "@failed.1")], error={"type": "E"}, entangled=True)
    assert set(HumanRequest.objects.values_list("status", flat=True)) == {"cancelled"}
    world.store_retry(run.id)
    for request, status in ((wanted, "pending"), (settled, "cancelled"), (answered, "cancelled")):
        request.refresh_from_db()
        assert request.status == status
    assert wanted.version == 3


def page(run, after=0):
    found, done = world.events_page(run.id, after)
    return [frame["seq"] for frame in found], [frame["type"] for frame in found], done


@pytest.fixture(params=["the site's", "the database's"])
def buffered(request, monkeypatch):
    """Valkey's and the table's."""
    if request.param == "the database's":
        world.patch(monkeypatch, "get_buffer", DatabaseBuffer)


@pytest.mark.parametrize("times", [1, 2])
def test_the_numbers_go_on_and_a_new_done_follows(clock, buffered, times):
    code(ask, model=model_failing(times))
    run = drive(make_run())
    seen, _, done = page(run)
    assert done
    for left in reversed(range(times)):
        clock.advance(1)
        retry(run.id, send=lambda run_id: None)
        _, types, done = page(run)
        assert (types[-1], done) == ("progress", False)
        drive(run, dies=None if left else "end")
    take_over(clock, run)
    everything, types, done = page(run)
    assert (done, types.count("error")) == (True, times)
    assert everything == list(range(1, len(everything) + 1))
    assert everything[: len(seen)] == seen
    assert (types.count("stream.done"), types[-1]) == (times + 1, "stream.done")
    after, types, done = page(run, after=seen[-1])
    assert done
    assert (after[0], types.count("stream.done")) == (seen[-1] + 1, times)
    assert world.events_page(run.id)[0][-1]["reason"] == "completed"


def test_an_old_end_is_not_the_end_before_the_new_frames_are_there(clock, buffered):
    """The root has ended again, and its frames wait in the worker."""
    code(ask, model=model_failing(1))
    run = drive(make_run())
    old = page(run)[0]
    retry(run.id, send=lambda run_id: None)

    def mute(engine):
        engine.publisher.emit = lambda *frames: None

    drive(run, setup=mute)
    assert run.status == Status.COMPLETED
    assert page(run)[2] is False
    assert page(run, after=old[-1])[2] is False
    clock.advance(60)
    world.sweeper_sweep(lambda run_ids: None)
    assert page(run)[1][-1] == "stream.done"
    assert page(run)[2] is True


def test_before_the_retried_frame_the_old_end_is_none_and_nobody_of_before_ends_the_stream(clock, monkeypatch):
    run = failed()
    world.store_retry(run.id)
    assert world.mark_many_published({str(run.id): (b"", 1)}) == []
    assert Run.objects.get(id=run.id).published_at is None
    world.republish(str(run.id))
    assert "stream.done" not in page(run)[1]

    world.patch(monkeypatch, "publish_retried", lambda run: None)
    code(ask, model=model_failing(1))
    run = drive(make_run())
    retry(run.id, send=lambda run_id: None)
    assert page(run)[1][-1] == "stream.done"
    assert page(run)[2] is False
    Run.objects.filter(id=run.id).update(status=Status.FAILED)  # ended again, and nothing of it is out
    assert page(run)[2] is False


def forget(url):
    import redis

    with redis.Redis.from_url(url) as client:
        client.flushdb()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_after_the_buffer_has_let_go_the_archive_comes_first_then_a_gap(clock, valkey_url, is_cancelled):
    code(ask, model=model_failing(1))
    run = drive(make_run())
    old = world.events_page(run.id)[0]
    forget(valkey_url)
    clock.advance(1)
    retry(run.id, send=lambda run_id: None)
    if is_cancelled:  # before it goes on
        cancel(run.id, "never mind")
        found, done = world.events_page(run.id)
        assert (done, found[: len(old)]) == (True, old)
        new = [frame["type"] for frame in found[len(old) :]]
        assert new == ["stream.gap", "progress", "progress", "error", "stream.done"]
        return
    assert [frame["seq"] for frame in world.events_page(run.id)[0]] == [frame["seq"] for frame in old]
    drive(run)
    for emptied in (False, True):  # from the buffer, and from the new archive
        if emptied:
            forget(valkey_url)
        found, done = world.events_page(run.id)
        assert (done, found[: len(old)]) == (True, old)
        gap = found[len(old)]
        assert (gap["type"], gap["from"], gap["to"] + 1) == ("stream.gap", old[-1]["seq"] + 1, gap["seq"])
        numbers = [frame["seq"] for frame in found[len(old) :]]
        assert numbers == list(range(gap["seq"], gap["seq"] + len(numbers)))
        assert (found[-1]["type"], found[-1]["reason"]) == ("stream.done", "completed")
        assert world.events_page(run.id, after=gap["seq"])[0] == found[len(old) + 1 :]
        assert world.events_page(run.id, limit=2)[0] == found[:2]
