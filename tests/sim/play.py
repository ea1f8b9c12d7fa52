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
from ravi_django.signals import request_opened
from tests.acceptance.crash.checks import Evidence
from tests.acceptance.crash.person import VOTES, make_people
from tests.sim import agent, site
from tests.sim.world import Silent, World
from tests.support import emptying, world as door
from tests.support.columns import KINDS


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

    def look(self, sql: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        return self._connection.execute(sql, params).fetchall()

    def ledger(self, name: str = "ledger") -> list[dict[str, Any]]:
        return {"ledger": agent.ledger, VOTES: agent.votes}.get(name, [])

    def forget(self) -> None:
        emptying.empty("ravi_")
        self._connection.execute("DELETE FROM lab_row")
        for one in (agent.ledger, agent.votes, agent.broken):
            one.clear()

    def close(self) -> None:
        self._connection.execute("DROP TABLE lab_row")
        self._connection.close()


# For parts that no schedule has, and for those who watch: nobody does.
ELSEWHERE = [
    *("sweeper_mail", "sweeper_erasing"),
    *("republish", "publish_ended", "publish_retried", "worker_seen", "tool_connections"),
]
COUNTED = 8  # one schedule in so many has its rollups looked at
IN_VAIN = ("unpublished", "silent", "due_to_escalate", "wings_each")  # what a sweep would look for


@contextmanager
def stage() -> Iterator[Witness]:
    """What every schedule needs."""
    witness = Witness()
    make_people()
    logging.disable(logging.CRITICAL)
    register(agent.agent(), access="private")
    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(*door.place_of("EnginePublisher"), Silent))
            stack.enter_context(patch.object(door.Heartbeat, "start", _Nothing()))
            for verb in ELSEWHERE:
                stack.enter_context(patch.object(*door.place_of(verb), _Nothing()))
            for verb in ("forget_dead_workers", "worker_swept", "refresh_daily"):
                stack.enter_context(patch.object(*door.place_of(verb), _Nothing()))
            for verb in IN_VAIN:
                stack.enter_context(patch.object(*door.place_of(verb), lambda *_, **__: []))
            play(witness, 0)  # what a process keeps of its first run would change the moves of a seed
            yield witness
    finally:
        logging.disable(logging.NOTSET)
        emptying.empty()
        site.people.cache_clear()
        witness.close()


class _Nothing:
    def __call__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return self


def play(witness: Witness, seed: int) -> tuple[World, list[str]]:
    """One schedule: the world after it, and what is wrong."""
    witness.forget()
    world = World(seed, witness.look)
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
        patch.object(agent, "on_wait", world.site.signal),
    ):
        request_opened.connect(world.site.opened)
        try:
            world.play()
        except AssertionError as error:
            return world, [str(error)]
        finally:
            request_opened.disconnect(world.site.opened)
    witness.stories = world.site.stories
    evidence = Evidence(witness)  # type: ignore[arg-type]
    evidence.cancelled = world.site.cancelled
    counted = [] if seed % COUNTED else _miscounted(witness)  # the count costs as much as a tenth of a schedule
    return world, [*(str(wrong) for wrong in evidence.violations()), *counted]


def _miscounted(witness: Witness) -> list[str]:
    """Each end and each call of a journal is in the rollups once."""
    while door.rollups_sweep():
        pass
    ends = ", ".join(str(KINDS[f"run.{end}"]) for end in ("completed", "failed", "cancelled"))
    model_call = KINDS["llm.call"]
    counts = [
        dict(witness.query(sql)[0])
        for sql in (
            f"SELECT count(*) FILTER (WHERE kind IN ({ends})) AS ends,"
            f" count(*) FILTER (WHERE kind = {model_call}) AS calls, coalesce(sum(input_tokens), 0) AS tokens"
            " FROM ravi_journalentry",
            *(
                "SELECT coalesce(sum(count) FILTER (WHERE model = ''), 0) AS ends, coalesce(sum(count) FILTER"
                " (WHERE outcome IN ('ok', 'error')), 0) AS calls, coalesce(sum(input_tokens), 0) AS tokens"
                f" FROM ravi_rollup WHERE span = '{span}'"
                for span in ("hour", "day")
            ),
        )
    ]
    return [] if counts[0] == counts[1] == counts[2] else [f"counted {counts[1]} and {counts[2]} of {counts[0]}"]
