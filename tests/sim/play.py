"""Play schedules: `python -m tests.sim [--seed N] [--seconds S]`; `play` is one of them."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import psycopg
from django.db import connection
from psycopg.rows import dict_row

from ravi_django import register
from tests.acceptance.crash.checks import Evidence
from tests.sim import agent
from tests.sim.world import Silent, World
from tests.support import emptying
from tests.support import world as door


class Witness:
    """Reads the database for `Evidence`, as the laboratory does."""

    plans: dict[str, Any] = {}

    def __init__(self) -> None:
        settings = connection.settings_dict
        self._connection = psycopg.connect(
            host=settings["HOST"],
            port=settings["PORT"],
            dbname=settings["NAME"],
            user=settings["USER"],
            password=settings["PASSWORD"],
            autocommit=True,
            row_factory=dict_row,
        )
        self.stories: dict[str, Any] = {}
        self._connection.execute("CREATE TABLE IF NOT EXISTS lab_row (id serial, run uuid, number int, key text)")

    def query(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        return self._connection.execute(sql, params).fetchall()

    def ledger(self, name: str = "ledger") -> list[dict[str, Any]]:
        return agent.ledger if name == "ledger" else []

    def forget(self) -> None:
        emptying.empty()
        self._connection.execute("DELETE FROM lab_row")
        agent.ledger.clear()

    def close(self) -> None:
        self._connection.execute("DROP TABLE lab_row")
        self._connection.close()


# What the sweep does for parts that no schedule has.
ELSEWHERE = [
    f"sweeper_{part}" for part in ("scheduler", "fan_out", "mail", "model_sources", "sources", "relay", "erasing")
]


@contextmanager
def stage() -> Iterator[Witness]:
    """What every schedule needs."""
    witness = Witness()
    logging.disable(logging.CRITICAL)
    register(agent.agent(), access="private")
    stubs = [(*door.place_of("EnginePublisher"), Silent), (*door.place_of("tool_running_connections"), _Nothing())]
    stubs += [(door.Heartbeat, "start", _Nothing.sweep), *((*door.place_of(verb), _Nothing()) for verb in ELSEWHERE)]
    try:
        with ExitStack() as stack:
            for target, name, stub in stubs:
                stack.enter_context(patch.object(target, name, stub))
            yield witness
    finally:
        logging.disable(logging.NOTSET)
        witness.forget()
        witness.close()


class _Nothing:
    def sweep(self) -> None: ...

    close_all = tick = sweep_unread = sweep


def play(witness: Witness, seed: int) -> tuple[World, list[str]]:
    """One schedule: the world after it, and what is wrong."""
    witness.forget()
    world = World(seed)
    own = random.Random(seed)
    random.seed(seed)
    begun = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1e9)
    with (
        world.clock,
        patch.object(time, "monotonic", world.monotonic),
        patch.object(time, "sleep", world.pass_time),
        patch.object(time, "time_ns", lambda: begun + int(world.now * 1e9)),
        patch.object(os, "urandom", own.randbytes),
        patch.object(*door.place_of("ids_last"), 0),
        patch.object(*door.place_of("dispatch_send"), world.hint),
    ):
        try:
            world.play()
        except AssertionError as error:
            return world, [str(error)]
    witness.stories = world.stories
    return world, [str(wrong) for wrong in Evidence(witness).violations()]  # type: ignore[arg-type]
