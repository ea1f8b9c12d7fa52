"""Many people answer the same requests at once: each is answered once, and its run goes on with that."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Barrier, Thread
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, connections

from project.process import wait_until
from ravi_django import submit
from ravi_django.kernel import ChatPayload, ConflictError
from ravi_django.models import AuditRecord, HumanRequest, Run, Status
from tests.support import world
from tests.support.cases import sizes
from tests.support.patience import seconds
from tests.support.runs import BOUND_S, code, on_postgresql
from tests.support.world import close_worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600), on_postgresql]

SEED = 7  # of who answers what when
SPARE = 40  # database connections that are left to the engine and to the test
CROWD_S = seconds(240)


@dataclass(slots=True)
class Tally:
    """What came of all the answers."""

    won: list[tuple[UUID, str]] = field(default_factory=list)  # request, and whose answer was taken
    lost: list[tuple[UUID, str, str]] = field(default_factory=list)  # request, whose was not, and the words for it
    wrong: list[BaseException] = field(default_factory=list)
    wall_s: float = 0.0


def people(count: int) -> list[Any]:
    """Members of staff."""
    model = get_user_model()
    return model.objects.bulk_create(model(username=f"person-{number:03}", is_staff=True) for number in range(count))


def answer_all(users: Sequence[Any], requests: Sequence[HumanRequest], seed: int) -> Tally:
    """Everybody answers everything, in an order of their own, beginning at the same moment."""
    tally, random = Tally(), Random(seed)
    threads = min(len(users), _room())
    barrier = Barrier(threads + 1)
    parts = []
    for number in range(threads):  # on a server with few connections some threads are several people
        part = [(user, request) for user in users[number::threads] for request in requests]
        random.shuffle(part)
        parts.append(part)
    crowd = [Thread(target=_one, args=(part, barrier, tally), daemon=True) for part in parts]
    for each in crowd:
        each.start()
    barrier.wait(CROWD_S)
    begun = time.perf_counter()
    for each in crowd:
        each.join(CROWD_S)
    tally.wall_s = time.perf_counter() - begun
    assert not any(each.is_alive() for each in crowd), "somebody is still at it"
    return tally


def _room() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('max_connections')::int")
        return max(10, int(cursor.fetchone()[0]) - SPARE)


def _one(part: list[tuple[Any, HumanRequest]], barrier: Barrier, tally: Tally) -> None:
    try:
        connection.ensure_connection()
        barrier.wait(CROWD_S)
        for user, request in part:
            name = user.get_username()
            try:
                _say(request, user)
            except ConflictError as error:
                tally.lost.append((request.id, name, str(error)))
            else:
                tally.won.append((request.id, name))
    except BaseException as error:
        tally.wrong.append(error)
        barrier.abort()
    finally:
        connections.close_all()


def _say(request: HumanRequest, user: Any) -> None:
    if request.kind == HumanRequest.Kind.APPROVAL:
        world.answer(request.id, "approve", reason=f"says {user.get_username()}", by=user)
    else:
        world.answer(request.id, text=f"says {user.get_username()}", by=user)


@pytest.fixture
def engine(settings: Any) -> Iterator[None]:
    """Runs are driven in this process, and by hints alone: a lost wake-up stays lost while the test lasts."""
    quiet = {"ENGINE": "inline", "SWEEP_S": 3600.0, "LEASE_S": 240.0, "HEARTBEAT_S": 20.0}
    settings.RAVI = {**settings.RAVI, **quiet}
    close_worker()
    yield
    close_worker()


@pytest.fixture(params=sizes(20, 50))
def many(request: pytest.FixtureRequest) -> int:
    """So many people, and as many requests."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def crowd(transactional_db: None, many: int) -> list[Any]:
    return people(many)


@pytest.fixture
def asked(engine: None, crowd: list[Any], many: int, django_user_model: Any) -> list[HumanRequest]:
    """Requests of as many runs, each of which waits: questions and approvals."""
    owner = django_user_model.objects.create_user("owner")

    async def story(ctx: Any, inbox: Any) -> str:
        assert isinstance(inbox[0].payload, ChatPayload)
        number = int(inbox[0].payload.message.text)
        if number % 2:
            decision = await ctx.approve("pay", {"amount": number}, to="staff")
            assert decision.allows
            return f"{decision.reason}, signed {decision.by}"
        told = await ctx.ask_human(f"Question {number}?", to="staff")
        return f"{told['text']}, signed {told['by']}"

    code(story)
    for number in range(many):
        submit("test/code", str(number), user=owner)
    assert wait_until(lambda: Run.objects.filter(status=Status.SUSPENDED).count() == many, BOUND_S)
    found = list(HumanRequest.objects.filter(status="pending"))
    assert Counter(request.kind for request in found) == {"question": many // 2, "approval": many // 2}
    return found


def test_each_request_is_answered_once_and_every_run_goes_on(asked, crowd, many) -> None:
    tally = answer_all(crowd, asked, SEED)
    print(f"\n{len(tally.won) + len(tally.lost)} answers in {tally.wall_s:.1f} s")

    assert not tally.wrong, tally.wrong[:3]
    assert (len(tally.won), len(tally.lost)) == (many, many * (many - 1))
    winners = dict(tally.won)
    assert set(winners) == {request.id for request in asked}
    for request_id, name, words in tally.lost:
        assert name != winners[request_id]
        assert words == f"Request {request_id} was already answered by {winners[request_id]}."
    going = Run.objects.exclude(status=Status.COMPLETED)
    assert wait_until(lambda: not going.exists(), BOUND_S), Counter(going.values_list("status", flat=True))
    for request in HumanRequest.objects.select_related("run", "answered_by"):
        winner = winners[request.id]
        assert (request.status, request.version, request.answered_by.get_username()) == ("answered", 2, winner)
        assert request.run.output == f"says {winner}, signed {winner}"
    records = AuditRecord.objects.filter(event="request")
    assert Counter(records.values_list("name", flat=True)) == {"opened": many, "answered": many}
    answered = {row.detail["request"]: row.detail["by"] for row in records.filter(name="answered")}
    assert answered == {str(request_id): name for request_id, name in winners.items()}
