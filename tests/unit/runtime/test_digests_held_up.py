"""Followers that cannot be given what is due now stand in nobody's way: the same sweep goes on to the next ones."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError

from ravi_django import access, register
from ravi_django.models import FeedItem, Publication, Run, Signal
from tests.support import world
from tests.support.feeds import followers, inboxes, publish, waiting_runs
from tests.support.runs import CodeAgent

pytestmark = pytest.mark.django_db(transaction=True)

BATCH = 2
SLOW = 6  # three batches


@pytest.fixture(autouse=True)
def _agent(monkeypatch, settings):
    register(CodeAgent(print, key="feed"))
    settings.RAVI = {**settings.RAVI, "FAN_OUT_BATCH": BATCH}
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")


def have_waited(slow, clock):
    """What was published waits for these, and for one behind them, who could be given it: its run."""
    (healthy,) = followers(1)
    (run,) = waiting_runs([healthy])
    publication = publish("hello")
    FeedItem.objects.bulk_create(
        FeedItem(follow=one, publication=publication, due_at=clock.now - timedelta(seconds=100 - place))
        for place, one in enumerate([*slow, healthy])
    )
    Publication.objects.update(done_at=world.now())
    return publication, run


def test_those_with_enough_unread(clock, settings):
    settings.RAVI = {**settings.RAVI, "FEED_UNREAD": 1}
    slow = followers(SLOW)
    Signal.objects.bulk_create(Signal(run=run, name="new_feed_item") for run in waiting_runs(slow))
    _, run = have_waited(slow, clock)

    world.fan_out_sweep()

    assert inboxes() == {run.id: ["hello"]}
    assert not FeedItem.objects.filter(due_at__lte=clock.now).exists()


def test_those_whose_last_run_has_failed(clock):
    slow = followers(SLOW)
    waiting_runs(slow, status="failed", waiting_on=None, finished_at=clock.now, created_at=clock.now)
    _, run = have_waited(slow, clock)

    world.fan_out_sweep()

    assert inboxes() == {run.id: ["hello"]}
    assert FeedItem.objects.count() == SLOW


def test_those_whose_rows_make_an_error(clock, monkeypatch):
    slow = followers(SLOW)
    broken, begin = {one.id for one in slow}, world.delivery_rows_begin

    def refuse(rows):
        if broken & {row.follow_id for row in rows}:
            raise IntegrityError("no such row")
        return begin(rows)

    world.patch(monkeypatch, "delivery_rows_begin", refuse)
    _, run = have_waited(slow, clock)

    world.fan_out_sweep()

    assert inboxes() == {run.id: ["hello"]}
    assert FeedItem.objects.filter(tries=1).count() == SLOW


def test_those_of_an_agent_that_no_process_knows(clock):
    _, run = have_waited(followers(SLOW, agent="nobody/knows"), clock)

    world.fan_out_sweep()

    assert inboxes() == {run.id: ["hello"]}


class Raises(access.AccessPolicy):
    def may_receive(self, users, topic):
        raise ZeroDivisionError


def test_those_for_whom_the_sites_policy_raises(clock, settings):
    settings.RAVI = {**settings.RAVI, "ACCESS_POLICY": f"{__name__}.Raises"}
    _, run = have_waited(followers(SLOW, owner=get_user_model().objects.create_user("ann")), clock)

    world.fan_out_sweep()

    assert inboxes() == {run.id: ["hello"]}
    assert FeedItem.objects.count() == SLOW


def test_who_would_be_told_what_it_has_said_itself(clock, settings):
    settings.RAVI = {**settings.RAVI, "FAN_OUT_BATCH": 1}
    slow = followers(1)
    (own,) = waiting_runs(slow)
    publication, run = have_waited(slow, clock)
    Publication.objects.filter(id=publication.id).update(run=own)

    world.fan_out_sweep()

    assert inboxes() == {run.id: ["hello"]}
    assert not FeedItem.objects.exists()


def test_one_sweep_looks_at_a_bounded_number_all_the_same(clock, monkeypatch):
    world.patch(monkeypatch, "FAN_OUT_BATCHES", 2)
    slow = followers(SLOW, agent="nobody/knows")
    have_waited(slow, clock)

    world.fan_out_sweep()

    assert FeedItem.objects.filter(due_at__lte=clock.now).count() == SLOW + 1 - 2 * BATCH
    world.fan_out_sweep()
    assert not world.has_due()
    assert Run.objects.filter(inbox__isnull=False).count() == 1
