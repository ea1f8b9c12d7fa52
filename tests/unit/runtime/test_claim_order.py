"""Which ready run is claimed first: the order of `claim_at`, fair between owners."""

import heapq
import random
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.db import connection

from ravi_django.conf import conf
from ravi_django.kernel import Priority
from ravi_django.models import Run, Status
from tests.support import world
from tests.support.runs import leased, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def users():
    return [get_user_model().objects.create(username=name) for name in ("many", "one", "two")]


def owner_of_each(leases):
    return [lease.run.owner.username if lease.run.owner else None for lease in leases]


@pytest.mark.sqlite
@pytest.mark.parametrize("others", ["one", None])
def test_one_owners_backlog_lets_the_run_of_another_pass(clock, users, others):
    many, one, _ = users
    for _ in range(30):
        make_run(owner=many)
    clock.advance(1)
    make_run(owner=one if others else None)

    batch = world.claim_batch("w", ["test/code"], 5)

    assert owner_of_each(batch) == ["many", others, "many", "many", "many"]


@pytest.mark.sqlite
@pytest.mark.parametrize(("fair_by", "first"), [("owner", "one"), ("tenant", "two"), (None, "many")])
def test_runs_are_counted_by_the_setting(clock, users, settings, fair_by, first):
    settings.RAVI = {**settings.RAVI, "FAIR_BY": fair_by}
    many, one, two = users
    leased(make_run(owner=many, tenant="a"))
    leased(make_run(owner=two, tenant="c"))
    for owner, tenant in ((many, "a"), (one, "a"), (two, "b")):
        make_run(owner=owner, tenant=tenant)

    assert owner_of_each(world.claim_batch("w", ["test/code"], 1)) == [first]


@pytest.mark.sqlite
def test_an_owners_own_backlog_of_lower_priority_does_not_delay_a_run(clock, users):
    for _ in range(30):
        make_run(owner=users[0], priority=Priority.BACKGROUND.value)
    chat = make_run(owner=users[0])

    assert [lease.run_id for lease in world.claim_batch("w", ["test/code"], 1)] == [chat.id]


@pytest.mark.sqlite
def test_the_runs_of_a_dead_worker_come_first_whoever_owns_them(clock, users):
    for _ in range(4):
        leased(make_run(owner=users[0]), "dead")
    clock.advance(conf.LEASE_S + 1)
    make_run(owner=users[1])

    assert owner_of_each(world.claim_batch("w", ["test/code"], 5)) == ["many"] * 4 + ["one"]


def _suspended(run):
    world.suspend(leased(run), [], seen=0, waits=[], wake_at=None)


def _woken(run):
    _suspended(run)
    world.send_signal(run.id, "go", None)


def _woken_by_a_touch(run):
    _suspended(run)
    world.touch([run.id])


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("vendor", [None, "another"])
@pytest.mark.parametrize(
    ("becomes_ready", "fair_by"),
    [
        (lambda run: None, "owner"),
        (lambda run: world.requeue(leased(run)), "tenant"),
        (_woken, "owner"),
        (_woken_by_a_touch, None),
    ],
)
def test_both_databases_write_the_same_claim_at(clock, users, settings, monkeypatch, vendor, fair_by, becomes_ready):
    settings.RAVI = {**settings.RAVI, "FAIR_BY": fair_by}
    if vendor is not None:
        monkeypatch.setattr(connection, "vendor", vendor)
    for status in (Status.PENDING, Status.RUNNING, Status.SUSPENDED, Status.COMPLETED):
        for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
            beside = make_run(owner=users[0], tenant="t", priority=priority.value)
            Run.objects.filter(id=beside.id).update(status=status)

    run = make_run(owner=users[0], tenant="t")
    becomes_ready(run)

    run.refresh_from_db()
    assert run.claim_at == world.claim_at(clock.now, Priority.NORMAL, 4 if fair_by else 0)


def test_a_wrong_setting_is_named(settings):
    settings.RAVI = {**settings.RAVI, "FAIR_BY": "user"}

    (fault,) = [found for found in run_checks() if found.id == "ravi.E033"]

    assert fault.hint == 'Use "owner" or "tenant" or None.'


# ------------------------------------------------------------------------- the order alone, simulated in memory

WORKERS, SLOTS, RUNS, TICK_S = 10, 50, 100_000, 0.1
BEGUN = datetime(2030, 1, 1, tzinfo=UTC)


class Site:
    """Workers that claim, work and die; in ticks. A run is a number."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tick = 0
        self.names = count()
        self.ready = []  # (claim_at, run)
        self.expired = deque()  # (tick, run)
        self.owners = {}
        self.open = Counter()
        self.ready_at, self.waited, self.recovered_after = {}, {}, []
        self.workers = [{} for _ in range(WORKERS)]  # run: the tick of its end

    def submit(self, owner):
        run, now = next(self.names), BEGUN + self.tick * timedelta(seconds=TICK_S)
        beside = min(self.open[owner], world.MOST_OPEN)
        heapq.heappush(self.ready, (world.claim_at(now, Priority.NORMAL, beside), run))
        self.owners[run], self.ready_at[run] = owner, self.tick
        self.open[owner] += 1

    def kill(self):
        dead = self.random.randrange(WORKERS)
        lease_ends = self.tick + int(conf.LEASE_S / TICK_S)
        self.expired += [(lease_ends, run) for run in self.workers[dead]]
        self.workers[dead] = {}

    def step(self):
        self.tick += 1
        for working in self.workers:
            for run in [run for run, end in working.items() if end <= self.tick]:
                del working[run]
                self.open[self.owners.pop(run)] -= 1
            while len(working) < SLOTS and self.expired and self.expired[0][0] < self.tick:
                lease_ended, run = self.expired.popleft()
                self.recovered_after.append((self.tick - lease_ended) * TICK_S)
                working[run] = self.tick + self.random.randrange(5, 35)
            while len(working) < SLOTS - 1 and self.ready:  # the last slot is kept for expired leases
                _, run = heapq.heappop(self.ready)
                self.waited[run] = (self.tick - self.ready_at.pop(run)) * TICK_S
                working[run] = self.tick + self.random.randrange(5, 35)


def test_no_backlog_delays_a_recovery_or_the_run_of_another_owner():
    """One owner submits 100,000 runs at once. Then each second a worker is killed, and another owner submits a run."""
    site, chats = Site(7), []
    for _ in range(RUNS):
        site.submit("many")

    while site.owners:
        if site.tick % int(1 / TICK_S) == 0:
            site.kill()
            if site.ready:
                chats.append(RUNS + len(chats))
                site.submit(f"chat {len(chats)}")
        site.step()

    assert len(site.waited) == RUNS + len(chats)
    assert len(site.recovered_after) > 5_000
    assert max(site.recovered_after) <= 1.0  # seconds after the end of the lease
    assert max(site.waited[chat] for chat in chats) <= 1.0
