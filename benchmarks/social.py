"""One message to thousands of followers: until the last row is committed, and until the last of them has run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction

from benchmarks.in_flight import ready_worker
from benchmarks.report import Figure
from benchmarks.stack import Stack
from project.process import ProcessError, wait_until
from ravi_django.kernel import Message
from ravi_django.models import Follow, InboxMessage, Publication, Run, Session, Status, uuid7
from ravi_django.runs import wake
from ravi_django.wings.feeds.social import fan_out, follow_rows, follows, publications
from ravi_django.wings.feeds.social.fan_out import deliver_batch

AGENT = "test/bench-follower"
TEXT = "A headline of some length, and the two sentences that say what it is about. They are short."
WAITS = [{"kind": "signal", "name": "new_feed_item", "until": None}]
ONE_BY_ONE = 500  # followers that are given it each by itself
TIMEOUT_S = 600.0


def measure(stack: Stack, followers: int, times: int) -> Iterator[Figure]:
    crowd = Crowd(followers)
    waiting = [_timed(crowd.publish_to_waiting) for _ in range(times)]
    idle = [_timed(crowd.publish_to_idle) for _ in range(times)]
    single = _one_by_one(crowd.wait()[: min(followers, ONE_BY_ONE)]) * followers
    yield from [
        Figure("fan_out_followers", None, float(followers), "followers"),
        Figure("fan_out_to_waiting", None, median(waiting), "ms"),
        Figure("fan_out_to_waiting_least", None, min(waiting), "ms"),
        Figure("fan_out_to_idle", None, median(idle), "ms"),
        Figure("fan_out_rows_one_by_one", None, single, "ms"),
        Figure("fan_out_one_by_one_ratio", None, single / median(waiting), "times"),
    ]
    with ready_worker(stack, [], BENCH_SCRIPTED_ALONE="1"):
        for name, wait in (("waiting", True), ("idle", False)):
            committed, ran = _driven(crowd, wait=wait)
            yield Figure(f"fan_out_{name}_committed", None, committed, "s")
            yield Figure(f"fan_out_{name}_last_ran", None, ran, "s")


class Crowd:
    """Followers of one topic, each of a user and a session of its own."""

    def __init__(self, count: int) -> None:
        users = get_user_model()
        self.topic = f"bench/{uuid7().hex[-8:]}"
        owners = users.objects.bulk_create(users(username=f"{self.topic}-{number}") for number in range(count))
        homes = Session.objects.bulk_create(Session(owner=owner, agent=AGENT) for owner in owners)
        self.follows = Follow.objects.bulk_create(
            Follow(
                agent=AGENT,
                topic=self.topic,
                owner=owner,
                home=home,
                follower=follow_rows.follower_of(AGENT, owner.pk, ""),
            )
            for owner, home in zip(owners, homes, strict=True)
        )

    def clear(self) -> None:
        """No run of theirs is live; statistics as autovacuum would keep them."""
        mine = Run.objects.filter(agent=AGENT)
        mine.exclude(status=Status.COMPLETED).update(status=Status.COMPLETED)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")

    def wait(self) -> list[Run]:
        """A run for each of them that waits for what is published."""
        self.clear()
        runs = Run.objects.bulk_create(
            Run(
                agent=AGENT,
                session_id=one.home_id,
                owner_id=one.owner_id,
                status=Status.SUSPENDED,
                waiting_on=WAITS,
            )
            for one in self.follows
        )
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
        return runs

    def publish_to_waiting(self) -> Callable[[], None]:
        self.wait()
        return self.publish()

    def publish_to_idle(self) -> Callable[[], None]:
        self.clear()
        return self.publish()

    def publish(self) -> Callable[[], None]:
        """What has it delivered to all of them; the hint that would have a worker do it is not sent."""
        publication = _publication(self.topic)

        def deliver() -> None:
            while deliver_batch(publication.id, 5000) is not None:
                pass
            publication.refresh_from_db()
            if publication.done_at is None or publication.delivered != len(self.follows):
                raise ProcessError(f"{publication.delivered} of {len(self.follows)} followers were delivered to")

        return deliver


def _publication(topic: str) -> Publication:
    message = Message(target=follows.topic_of(topic), payload=publications.payload_for(TEXT, TEXT))
    made = publications.publication_of(message, "", "system")
    return publications.create_publication(made)[0]


def _timed(prepare: Callable[[], Callable[[], None]]) -> float:
    deliver = prepare()
    begun = time.perf_counter()
    deliver()
    return (time.perf_counter() - begun) * 1000


def _one_by_one(runs: list[Run]) -> float:
    """Milliseconds a follower: message and wake-up as rows by themselves, in a transaction each."""
    body = _publication("bench/nobody").body

    def deliver() -> None:
        for run in runs:
            with transaction.atomic():
                Run.objects.select_for_update(no_key=True).filter(id=run.id).values_list("status").get()
                InboxMessage.objects.create(run_id=run.id, message_id=body["id"], name="new_feed_item", body=body)
                wake.touch([run.id])

    return _timed(lambda: deliver) / len(runs)


def _driven(crowd: Crowd, *, wait: bool) -> tuple[float, float]:
    """Seconds from publishing, through the broker and one worker, to the last row and to the last follower's end."""
    if wait:
        crowd.wait()
    else:
        crowd.clear()
    before = _ended()
    begun = time.time()
    publication = _publication(crowd.topic)
    fan_out.hint(publication.id)
    _until(lambda: Publication.objects.filter(id=publication.id, done_at__isnull=False).exists(), "delivered")
    _until(lambda: _ended() - before >= len(crowd.follows), "run")
    publication.refresh_from_db()
    last: Any = Run.objects.filter(agent=AGENT, status=Status.COMPLETED).order_by("-finished_at")
    finished = last.exclude(finished_at=None).values_list("finished_at", flat=True)[0]
    return publication.done_at.timestamp() - begun, finished.timestamp() - begun  # type: ignore[union-attr]


def _ended() -> int:
    return Run.objects.filter(agent=AGENT, status=Status.COMPLETED, finished_at__isnull=False).count()


def _until(condition: Callable[[], bool], what: str) -> None:
    if not wait_until(condition, TIMEOUT_S, poll=0.1):
        raise ProcessError(f"not all followers have {what} within {TIMEOUT_S:.0f} s")
