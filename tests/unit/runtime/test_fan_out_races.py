"""A fan-out beside all else that writes runs: it waits for nobody, nobody's message is lost, none comes twice."""

from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django.models import FeedItem, Follow, InboxMessage, Publication, Run
from tests.support import world
from tests.support.feeds import (  # noqa: F401 - a fixture
    FEED,
    TOPIC,
    announced,
    follow_row,
    followers,
    inboxes,
    publish,
    unhinted,
    waiting_runs,
    words,
)
from tests.support.runs import (
    BOUND_S,
    at_once,
    in_background,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    uncommitted,
    until,
)

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def in_time(function, *args):
    return in_background(function, *args).result(BOUND_S)


def deliver(publication):
    return in_time(world.deliver_batch, publication.id, 100)


@pytest.mark.parametrize("how", ["holds", "ends"])
def test_a_run_that_somebody_holds_or_ends_is_for_later_and_the_others_are_not(how):
    follows = followers(5)
    runs = waiting_runs(follows)
    publication = publish("hello")
    held = Run.objects.filter(id=runs[2].id)

    with uncommitted(lambda: held.select_for_update().get() if how == "holds" else held.update(status="completed")):
        batch = deliver(publication)
        assert (batch.delivered, batch.waiting, batch.at_once, batch.done) == (4, 1, True, True)
    assert announced(runs[2]) == 0
    world.deliver_due()

    if how == "ends":  # it leaves the message to a new one
        runs[2] = Run.objects.exclude(id__in=[run.id for run in runs]).get()
        assert runs[2].session_id == follows[2].home_id
    assert inboxes() == {run.id: ["hello"] for run in runs}
    assert InboxMessage.objects.get(run=runs[2]).message_id == publication.id.hex  # as any other, no digest
    assert Publication.objects.get().delivered == 5


@pytest.mark.parametrize("change", [{"status": "completed"}, {"agent": "test/other"}])
def test_a_run_that_has_changed_since_it_was_found_is_not_told(monkeypatch, change):
    """The closer look finds it, and locks it when it is another's, or over."""
    (one,) = followers(1)
    (run,) = waiting_runs([one])
    publication = publish("hello")
    world.patch(monkeypatch, "fan_out_delivered", lambda *args: None)
    find = world.deliveries_targets

    def changed(dues):
        found = find(dues)
        Run.objects.filter(id=run.id).update(**change)
        return found

    world.patch(monkeypatch, "deliveries_targets", changed)

    batch = world.deliver_batch(publication.id, 100)
    assert (batch.delivered, batch.waiting, inboxes()) == (0, 1, {})


def test_whoever_is_given_the_message_by_others_meanwhile_has_it_once():
    follows = followers(3)
    runs = waiting_runs(follows)
    publication = publish("hello")
    same = {"message_id": publication.id.hex, "body": publication.body}
    with uncommitted(lambda: InboxMessage.objects.create(run=runs[1], **same)):
        delivering = in_background(world.deliver_batch, publication.id, 100)
        until(somebody_waits_for_a_lock)
    assert delivering.result(BOUND_S).delivered == 3
    assert inboxes() == {run.id: ["hello"] for run in runs}
    assert announced(runs[0]) == announced(runs[2]) == 1


@pytest.mark.parametrize("when", ["meanwhile", "right before the lock"])
def test_a_run_that_is_submitted_in_the_home_is_told(monkeypatch, when):
    (one,) = followers(1)
    publication = publish("hello")
    find, begun = world.deliveries_targets, []

    def submit():
        begun.append(make_run(FEED, session=one.home))

    def submitted(dues):
        found = find(dues)
        if not begun:
            submit()
        return found

    if when == "meanwhile":
        with uncommitted(submit):
            assert deliver(publication).waiting == 1
    else:
        world.patch(monkeypatch, "deliveries_targets", submitted)
        world.deliver_batch(publication.id, 100)
    world.deliver_due()

    assert inboxes() == {begun[0].id: ["", "hello"]}
    assert announced(begun[0]) == 1


def test_a_follow_or_a_publication_that_somebody_is_at_is_left_to_him():
    follows = followers(3)
    publication = publish("hello")

    with uncommitted(lambda: Publication.objects.select_for_update().get()):
        assert deliver(publication) is None
    with uncommitted(lambda: Follow.objects.filter(id=follows[1].id).update(every_s=0)):
        batch = deliver(publication)
    assert (batch.delivered, batch.waiting, batch.done) == (2, 1, True)
    world.deliver_due()
    assert list(inboxes().values()) == [["hello"]] * 3

    publication = publish("more")
    with uncommitted(lambda: Follow.objects.filter(id=follows[2].id).delete()):
        batch = deliver(publication)
    assert (batch.delivered, batch.waiting, batch.done) == (2, 0, True), "who unfollows is not waited for"


def test_two_publications_to_the_same_runs_at_once_close_no_circle():
    first = followers(300)
    runs = waiting_runs(first)
    Follow.objects.bulk_create(
        follow_row(FEED, "news/art", session=one.session, home=one.home) for one in reversed(first)
    )
    for _ in range(3):
        works = [partial(world.fan_out_run, one.id) for one in (publish("tech"), publish("art", topic="news/art"))]
        at_once(*works, *works)

    def are_given() -> bool:
        world.deliver_due()  # leaves what a fan-out in the background has locked
        said = ["+".join(given).split("+") for given in inboxes().values()]  # two that wait may come in one message
        return {tuple(sorted(each)) for each in said} == {("art",) * 3 + ("tech",) * 3}

    until(are_given)
    assert len(inboxes()) == len(runs)
    assert InboxMessage.objects.filter(name="new_feed_item").count() == InboxMessage.objects.count()
    assert not FeedItem.objects.exists()
    assert set(Run.objects.values_list("status", flat=True)) == {"pending"}


def test_ends_submits_and_fan_outs_at_once_lose_nothing():
    """Each follower has every publication once, in whichever run."""
    follows = followers(60)
    runs = waiting_runs(follows)

    def end():
        for run in runs:
            world.request_cancel(run.id, "enough")

    def submit():
        for one in reversed(follows):
            world.create_run(Run(agent=FEED, session=one.home), {"id": f"s{one.id.hex}", "payload": {}})

    publications = [publish(str(number)) for number in range(3)]
    works = [end, submit, *(partial(world.fan_out_run, one.id) for one in publications)]
    at_once(*works)
    for one in publications:
        world.fan_out_run(one.id)
    until(lambda: world.deliver_due() or not FeedItem.objects.exists())  # who was held twice is for the next sweep

    given = {}
    for session_id, body in InboxMessage.objects.values_list("run__session_id", "body"):
        given.setdefault(session_id, []).extend(filter(None, words(body).split("+")))
    assert {tuple(sorted(said)) for said in given.values()} == {("0", "1", "2")}
    assert len(given) == 60


def test_a_small_publication_goes_on_beside_a_huge_one():
    followers(50)
    followers(1, topic="news/art")
    huge, small = publish("huge"), publish("small", topic="news/art")
    with uncommitted(lambda: world.deliver_batch(huge.id, 10)):
        assert deliver(small).done


def test_ten_times_the_followers_are_no_more_statements():
    counts = []
    for many in (20, 200):
        follows = followers(many, topic=f"news/{many}")
        waiting_runs(follows[: many // 2])
        publication = publish("hello", topic=f"news/{many}")
        with CaptureQueriesContext(connection) as captured:
            world.deliver_batch(publication.id, 1_000)
        counts.append(len(captured))
    assert counts[0] == counts[1] < 40
