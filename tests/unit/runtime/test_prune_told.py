"""What runs were told goes with their past: of runs that live for ever what earlier generations had, of ended ones all
but what they were asked. Nothing comes twice for it."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model

from ravi_django import register
from ravi_django.models import FeedItem, InboxMessage, JournalEntry, Publication, Signal, Status
from tests.support import feeds, world
from tests.support.arriving import arrive
from tests.support.runs import CodeAgent, leased, make_run
from tests.support.world import Entry

pytestmark = pytest.mark.django_db(transaction=True)

DAY = world.DAY_S
JOURNAL = {"journal": 10 * DAY}


def begun_anew(run=None):
    """A run in its second generation, and the messages that the first one had: what it was asked, and one more."""
    run = run or make_run()
    arrive(run, "one more")
    lease = leased(run)
    upto = InboxMessage.objects.filter(run=run).order_by("id").last().id
    world.continue_as_new(lease, [Entry("run.continued", "@on")], state=None, read_upto=upto)
    run.refresh_from_db()
    return run


def texts(run):
    bodies = InboxMessage.objects.filter(run=run).order_by("id").values_list("body", flat=True)
    return [body["payload"]["message"]["content"][0]["text"] for body in bodies]


def test_what_earlier_generations_were_given_goes_and_what_the_run_was_asked_stays(clock):
    run = begun_anew()
    arrive(run, "unread")
    InboxMessage.objects.update(created_at=clock.now)
    clock.advance(10 * DAY)
    assert world.prune(JOURNAL)["inbox"] == 0
    clock.advance(1)
    assert world.prune(JOURNAL, dry_run=True)["inbox"] == 1
    assert texts(run) == ["hi", "one more", "unread"]
    assert world.prune(JOURNAL)["inbox"] == 1
    assert texts(run) == ["hi", "unread"]


def test_signals_that_were_read_long_ago_go(clock):
    run = begun_anew()
    for name, fields in {
        "read": {"consumed_at": clock.now},
        "just read": {"consumed_at": clock.now + timedelta(days=5)},
        "unread": {},
        "wakes nobody yet": {"consumed_at": clock.now, "woke": False},
    }.items():
        Signal.objects.create(run=run, name=name, **fields)
    clock.advance(10 * DAY + 1)
    assert world.prune(JOURNAL, dry_run=True)["signals"] == 1
    assert world.prune(JOURNAL)["signals"] == 1
    assert set(Signal.objects.values_list("name", flat=True)) == {"just read", "unread", "wakes nobody yet"}


@pytest.fixture
def delivered(monkeypatch, clock):
    """A publication that a run in its second generation has had in its first."""
    register(CodeAgent(print))
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")

    def deliver(**owner):
        (follow,) = feeds.followers(1, agent="test/code", **owner)
        publication = feeds.publish("hello")
        run = make_run(session=follow.home, **owner)
        world.deliver_batch(publication.id, 10)
        begun_anew(run)
        clock.advance(11 * DAY)
        return run, follow, publication

    return deliver


def had(run, publication):
    return InboxMessage.objects.filter(run=run, message_id=publication.id.hex).count()


@pytest.mark.parametrize("owned", [True, False])
def test_nor_while_it_waits_for_another_follow_of_the_same_agent(delivered, owned, clock):
    owner = {"owner": get_user_model().objects.create_user("ann")} if owned else {}
    run, _, publication = delivered(**owner)
    again = feeds.follow("test/code", home=run.session, **owner)
    FeedItem.objects.create(follow=again, publication=publication, due_at=clock.now)
    world.prune(JOURNAL)
    world.fan_out_sweep()
    assert not FeedItem.objects.exists()
    assert had(run, publication) == 1


def test_somebody_elses_waiting_keeps_nothing_but_its_fan_out_that_is_under_way(delivered, clock, django_user_model):
    ann, bob = (django_user_model.objects.create_user(name) for name in ("ann", "bob"))
    run, _, publication = delivered(owner=ann)
    Publication.objects.update(done_at=None)
    world.prune(JOURNAL)
    assert had(run, publication) == 1
    Publication.objects.update(done_at=world.now())
    (follow,) = feeds.followers(1, agent="test/code", owner=bob)
    FeedItem.objects.create(follow=follow, publication=publication, due_at=clock.now + timedelta(days=99))
    world.prune(JOURNAL)
    assert had(run, publication) == 0


def ended():
    root = make_run()
    child = make_run(parent=root, root=root, depth=1, session=root.session)
    for run in (child, root):
        arrive(run, "one more")
        lease = leased(run)
        world.append(lease, [Entry("run.started", "@started"), Entry("log", "log")])
        world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="done")
    return root, child


def test_of_an_ended_tree_what_each_run_was_asked_stays(clock):
    runs = ended()
    clock.advance(10 * DAY + 1)
    assert world.prune(JOURNAL, dry_run=True)["inbox"] == 2
    assert world.prune(JOURNAL)["inbox"] == 2
    assert [texts(run) for run in runs] == [["hi"]] * 2
    assert world.prune(JOURNAL)["inbox"] == 0


def test_not_before_its_journal(clock, monkeypatch):
    """A retry or a fork of one that is not pruned reads its messages."""
    ended()
    clock.advance(11 * DAY)

    def die(found):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        world.patch(patched, "prune_delete", die)
        with pytest.raises(KeyboardInterrupt):
            world.prune(JOURNAL)
    world.patch(monkeypatch, "PRUNE_ROWS", 1)
    deleted = []
    delete = world.prune_delete
    world.patch(monkeypatch, "prune_delete", lambda found: deleted.append(found.model) or delete(found))
    world.prune(JOURNAL)
    kinds = [model for model in deleted if model in (JournalEntry, InboxMessage)]
    assert kinds == [JournalEntry] * 6 + [InboxMessage] * 2


def test_a_dry_run_counts_an_ended_runs_earlier_generations_once(clock):
    run = begun_anew()
    lease = leased(run)
    Signal.objects.create(run=run, name="read", consumed_at=clock.now)
    world.finish(lease, Status.COMPLETED, [Entry("run.completed", "@completed.1")], output="done")
    begun_anew()
    clock.advance(11 * DAY)
    would = world.prune(JOURNAL, dry_run=True)
    assert would == world.prune(JOURNAL)
    assert (would["inbox"], would["signals"]) == (2, 1)
