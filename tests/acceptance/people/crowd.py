"""Many people who answer the same requests at once, each on a thread and a database connection of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Barrier, Thread
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import connection, connections

from ravi_django.kernel import ConflictError
from ravi_django.models import HumanRequest
from tests.support import world
from tests.support.patience import seconds

SPARE = 40  # database connections that are left to the engine and to the test
BOUND_S = seconds(240)


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
    barrier.wait(BOUND_S)
    begun = time.perf_counter()
    for each in crowd:
        each.join(BOUND_S)
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
        barrier.wait(BOUND_S)
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
