"""A publication is delivered to each follower once: to the run that waits, or as the first message of a new one."""

import logging

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError

from ravi_django import register, tasks
from ravi_django.access import AccessPolicy
from ravi_django.models import (
    Agent,
    FeedItem,
    Follow,
    InboxMessage,
    Publication,
    Run,
    Session,
    WorkerProcess,
    uuid7,
)
from tests.support import world
from tests.support.feeds import (  # noqa: F401 - a fixture
    FEED,
    TOPIC,
    WAITS,
    announced,
    follow,
    followers,
    inboxes,
    publish,
    unhinted,
    waiting_runs,
)
from tests.support.runs import CodeAgent, claim_next, code, make_run, until
from tests.support.world import being_changed

pytestmark = pytest.mark.django_db(transaction=True)
ART = "news/art"


def deliver(publication, limit=100):
    return world.deliver_batch(publication.id, limit)


def waits_elsewhere(agent=FEED, name="new_feed_item", **fields):
    run = make_run(agent, **fields)
    Run.objects.filter(id=run.id).update(status="suspended", waiting_on=[{**WAITS[0], "name": name}])
    return run


# ------------------------------------------------------------------------------------------------------- to whom


@pytest.mark.sqlite
def test_an_idle_agent_gets_a_run_with_the_message_and_no_signal(ada):
    one = follow(owner=ada, tenant="", metadata={"variables": {"a": 1}})
    publication = publish("hello")

    batch = deliver(publication)

    run = Run.objects.get()
    assert (run.agent, run.owner, run.status, run.metadata) == (FEED, ada, "pending", {"variables": {"a": 1}})
    assert inboxes() == {run.id: ["hello"]}
    assert InboxMessage.objects.get().message_id == publication.id.hex
    assert InboxMessage.objects.get().body["target"] == f"topic:{TOPIC}"
    assert (batch.delivered, batch.done, batch.woken) == (1, True, [run.id])
    one.refresh_from_db()
    assert one.home_id == run.session_id
    assert (run.session.agent, run.session.owner, run.session.title) == (FEED, ada, TOPIC)
    assert being_changed([uuid7()]) == [], "a follow that was deleted is not waited for"


@pytest.mark.sqlite
def test_a_run_in_its_home_is_told_and_woken_where_it_waits():
    statuses = ["pending", "pending", "running", "blocked"]  # by then: the first one waits for it
    runs = waiting_runs(followers(4))
    for run, status in zip(runs[1:], statuses[1:], strict=True):
        Run.objects.filter(id=run.id).update(status=status, waiting_on=None)
    publication = publish("hello")
    batch = deliver(publication)
    assert inboxes() == {run.id: ["hello"] for run in runs}
    for run, status in zip(runs, statuses, strict=True):
        run.refresh_from_db()
        assert (run.status, run.wake_seq, run.wake_at, announced(run)) == (status, 1, None, 1)
    row = InboxMessage.objects.get(run=runs[0])
    told_of = {"topic": TOPIC, "publication": str(publication.id), "message": publication.body["id"]}
    assert (row.name, world.announcement(row.body)) == ("new_feed_item", told_of)
    assert runs[0].id in batch.woken and not {runs[2].id, runs[3].id} & {*batch.woken}


@pytest.mark.sqlite
@pytest.mark.parametrize("where", ["at home", "elsewhere"])
def test_a_run_that_a_delivery_wakes_does_not_go_before_a_new_chat(clock, ada, where):
    if where == "at home":
        waiting_runs(followers(1))
    else:
        follow(owner=ada)
        waits_elsewhere(owner=ada)
    (woken,) = deliver(publish("hello")).woken
    chat = make_run("test/chat")
    assert [claim_next("w", ["test/chat", FEED]).run_id for _ in range(2)] == [chat.id, woken]


def test_the_newest_run_elsewhere_that_waits_for_items_becomes_its_home(ada):
    one = follow(owner=ada)
    runs = [waits_elsewhere(owner=ada, name=name) for name in ("new_feed_item", "new_feed_item", "other")]
    deliver(publish("hello"))
    assert [announced(run) for run in runs] == [0, 1, 0]
    one.refresh_from_db()
    assert one.home_id == runs[1].session_id


def test_runs_of_others_and_a_follow_of_one_session_are_left_where_they_are(ada):
    bob = get_user_model().objects.create_user("bob")
    others = [{"owner": bob}, {"owner": ada, "tenant": "t"}, {"owner": ada, "agent": "test/other"}]
    for number, fields in enumerate(others):
        run = waits_elsewhere(**fields)
        follow(owner=ada, topic=f"a/{number}")
        deliver(publish("hello", topic=f"a/{number}"))
        assert announced(run) == 0, fields
        Follow.objects.all().delete()
    Run.objects.all().delete()
    session = Session.objects.create(owner=ada, agent=FEED)
    follow(owner=ada, session=session, home=session)
    other = waits_elsewhere(owner=ada)

    deliver(publish("hello"))
    assert announced(other) == 0
    assert Run.objects.exclude(id=other.id).get().session == session


def test_a_run_of_another_owner_in_the_home_is_not_told_but_queued_behind_once(ada):
    session = Session.objects.create(owner=ada, agent=FEED)
    follow(owner=ada, session=session, home=session)
    stranger = make_run(FEED, session=session)
    deliver(publish("one"))
    deliver(publish("two"))
    queued = Run.objects.get(status="queued")
    assert (queued.session, queued.owner) == (session, ada)
    assert inboxes() == {stranger.id: [""], queued.id: ["one", "two"]}


def test_of_a_topic_its_followers_by_then_are_given_it_and_a_row_agent_in_its_newest_version():
    Agent.objects.create(address="react/row", source=Agent.Source.ADMIN, version=7)
    follow("react/row")
    followers(1, tenant="t")
    followers(1, topic=ART)
    publication = publish("hello")
    followers(1)
    batch = deliver(publication)
    assert (batch.delivered, batch.done, Run.objects.get().agent_version) == (1, True, 7)


# -------------------------------------------------------------------------------------------------- permissions


def test_an_owner_who_is_not_active_gets_nothing(ada):
    follow(owner=ada)
    (run,) = waiting_runs(followers(1, owner=ada))
    get_user_model().objects.filter(id=ada.id).update(is_active=False)
    batch = deliver(publish("hello"))
    assert (batch.delivered, batch.done, Run.objects.count(), announced(run)) == (0, True, 1, 0)
    assert Publication.objects.get().delivered == 0


def test_an_agent_that_is_switched_off_gets_nothing_which_the_log_says(caplog):
    register(CodeAgent(print, key="off"))
    for agent, source in (("test/off", Agent.Source.CODE), ("react/off", Agent.Source.ADMIN), ("test/no", "code")):
        Agent.objects.create(address=agent, enabled=False, source=source)
        waiting_runs(followers(3, agent=agent))
    assert "test/no" not in world.agents_by_address
    followers(1)

    with caplog.at_level(logging.WARNING, "ravi.fan_out"):
        batch = deliver(publish("hello"))

    assert (batch.delivered, batch.done, FeedItem.objects.count()) == (1, True, 0)
    assert {record.action for record in caplog.records} == {"fan_out.disabled"}
    assert "3 follows" in caplog.text and "test/no" in caplog.text


class Choosy(AccessPolicy):
    asked: list[tuple[list[str], str]] = []

    def may_receive(self, users, topic):
        self.asked.append((sorted(user.username for user in users), str(topic)))
        return {user.pk for user in users if user.username != "bob"}


def test_the_policy_is_asked_once_a_batch_and_only_where_a_site_has_one(ada, settings):
    Choosy.asked.clear()
    follow(owner=ada)
    followers(2, owner=get_user_model().objects.create_user("bob"))
    followers(1)
    publication = publish("hello")
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Choosy"}
    world.fan_out_run(publication.id)
    assert Choosy.asked == [(["ada", "bob"], TOPIC)]
    assert sorted(str(run.owner) for run in Run.objects.all()) == ["None", "ada"]
    assert Publication.objects.get().delivered == 2


# ------------------------------------------------------------------------------------------------------ batches


def test_batch_after_batch_goes_on_where_the_one_before_stopped(monkeypatch):
    follows = followers(5)
    publication, second = publish("hello"), publish("x" * 1_000)

    sizes = []
    while (batch := deliver(second, 2)).publication_id == publication.id:
        sizes.append((batch.delivered, batch.done))

    assert sizes == [(2, False), (2, False), (1, True)], "of a topic one publication comes after the other"
    assert (batch.publication_id, batch.delivered) == (second.id, 2)
    publication.refresh_from_db()
    assert (publication.delivered, publication.upto) == (5, publication.last)
    assert publication.done_at is not None
    world.patch(monkeypatch, "FAN_OUT_BATCH_BYTES", 3_000)
    assert deliver(second, 100).delivered < 3, "a large message goes to fewer at once"
    world.fan_out_run(second.id)
    assert list(inboxes().values()) == [["hello", "x" * 1_000]] * len(follows)
    assert deliver(second, 2) is None


@pytest.mark.sqlite
def test_a_batch_that_was_rolled_back_is_delivered_again_and_nothing_twice(monkeypatch):
    followers(4)
    publication = publish("hello")
    deliver(publication, 2)

    def die(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        world.patch(patched, "fan_out_set_all_aside", die)
        with pytest.raises(KeyboardInterrupt):
            deliver(publication, 2)
    assert Run.objects.count() == 2
    deliver(publication, 2)

    assert [len(given) for given in inboxes().values()] == [1] * 4
    assert deliver(publication, 2) is None


def test_a_task_is_bounded_and_hints_the_rest(monkeypatch, settings):
    settings.RAVI = {**settings.RAVI, "FAN_OUT_BATCH": 2}
    world.patch(monkeypatch, "FAN_OUT_BATCHES", 2)
    hinted = []
    world.patch(monkeypatch, "fan_out_hint", hinted.append)
    followers(5)
    publication = publish("hello")
    for runs in (4, 5):
        world.fan_out_run(publication.id)
        assert (Run.objects.count(), hinted) == (runs, [publication.id])


def test_the_sweep_goes_on_with_what_no_hint_has_reached(clock, settings, django_assert_max_num_queries):
    settings.RAVI = {**settings.RAVI, "FAN_OUT_BATCH": 1}
    with django_assert_max_num_queries(2):
        world.fan_out_sweep()
    followers(2)
    publish("hello")
    world.fan_out_sweep()
    assert not Run.objects.exists()

    clock.advance(60)
    world.fan_out_sweep()
    assert Run.objects.count() == 1
    world.sweeper_sweep(lambda run_ids: [])

    assert Run.objects.count() == 2
    assert world.fan_out_unfinished(10) == []


def test_two_follows_that_come_to_one_run_give_it_one_message(ada):
    session = Session.objects.create(owner=ada, agent=FEED)
    follow(owner=ada, home=session)
    follow(owner=ada, home=session, session=session)
    publication = publish("hello")
    deliver(publication)
    world.deliver_due()
    publication.refresh_from_db()
    assert (list(inboxes().values()), publication.followers, publication.delivered) == ([["hello"]], 2, 2)
    assert not FeedItem.objects.exists()


# -------------------------------------------------------------------------------------------------- other topics


def test_topics_that_fail_do_not_stand_before_the_others(clock, monkeypatch, caplog):
    for number in range(2 * world.FAN_OUT_BATCHES):
        followers(1, topic=f"bad/{number}")
        publish("bad", topic=f"bad/{number}")
    followers(1)
    good = publish("good")
    clock.advance(60)
    deliver_batch = world.deliver_batch

    def of_the_good_one(publication_id, *args):
        if publication_id != good.id:
            raise RuntimeError("the site's")
        return deliver_batch(publication_id, *args)

    world.patch(monkeypatch, "deliver_batch", of_the_good_one)
    with caplog.at_level(logging.ERROR, "ravi.fan_out"):
        for _ in range(60):  # by chance: one in two sweeps comes to it
            world.fan_out_sweep()

    assert list(inboxes().values()) == [["good"]]
    assert caplog.records[0].action == "fan_out.failed"


def test_trouble_of_the_database_is_no_failure_of_the_followers(monkeypatch):
    def away(*args):
        raise OperationalError("away")

    followers(2)
    publication = publish("goal")
    world.patch(monkeypatch, "fan_out_delivered", lambda *args: None)
    world.patch(monkeypatch, "deliveries_targets", away)

    with pytest.raises(OperationalError, match="away"):
        deliver(publication)

    assert not FeedItem.objects.exists()


def test_many_publications_of_one_topic_do_not_starve_another(clock, monkeypatch):
    hinted = []
    world.patch(monkeypatch, "fan_out_hint", hinted.append)
    followers(1)
    followers(1, topic=ART)
    hot = [publish("hot") for _ in range(3 * world.FAN_OUT_BATCHES)]
    art = publish("art", topic=ART)
    clock.advance(60)

    assert sorted(world.fan_out_unfinished(world.FAN_OUT_BATCHES)) == [hot[0].id, art.id]
    world.fan_out_sweep()

    assert ["art"] in inboxes().values()
    assert hinted == [hot[0].id], "the next one of its topic"


# --------------------------------------------------------------------------------------------------------- hints


@pytest.mark.parametrize(("workers", "looks"), [(0, 16), (3, 16), (40, 80)])
def test_of_many_runs_to_drive_all_workers_are_set_going(monkeypatch, workers, looks):
    monkeypatch.undo()  # the hints of this file are silent
    sent = []
    world.patch(monkeypatch, "send_many", lambda run_ids: sent.extend(run_ids))
    world.patch(monkeypatch, "background_hint", lambda task, *args: sent.append(task))
    few = [uuid7() for _ in range(world.FAN_OUT_FEW)]
    world.fan_out_wake(few)
    world.fan_out_wake([])
    assert sent == few, "few are hinted one by one"
    WorkerProcess.objects.bulk_create(
        WorkerProcess(name=f"w{number}", seen_at=world.now(), started_at=world.now()) for number in range(workers)
    )

    world.fan_out_wake([uuid7() for _ in range(10_000)])
    assert sent[len(few) :] == ["ravi.look"] * looks


def test_one_look_drives_them_all():
    async def nothing(ctx, inbox):
        return "done"

    code(nothing)
    for _ in range(5):
        make_run()
    try:
        tasks.look.run()
        until(lambda: Run.objects.filter(status="completed").count() == 5)
    finally:
        world.close_worker()
