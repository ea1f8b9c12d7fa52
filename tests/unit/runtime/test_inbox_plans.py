"""A batch of a backlog costs the database that batch: neither what is unread behind it, nor what others have."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from ravi_django.models import InboxMessage, Run
from tests.support import world
from tests.support.runs import make_run, on_postgresql

pytestmark = [pytest.mark.django_db, on_postgresql]

BACKLOG, LIMIT = 3000, 20
BODY = {"payload": {"kind": "data", "data": {"text": "lorem ipsum " * 30}}}


def deliver(run: Run, number: int, to: str = "%s") -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ravi_inboxmessage (run_id, message_id, body)"
            f" SELECT {to}, gen_random_uuid()::text, %s::jsonb FROM generate_series(1, %s)",
            [*([run.id] if to == "%s" else []), json.dumps(BODY), number],
        )


@pytest.fixture(scope="module")
def backlogs(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Run]]:
    """Three runs, of which one is far behind all that others have, and one among them; and the statistics of it all."""
    with django_db_blocker.unblock(), transaction.atomic():
        runs = {name: make_run(f"test/{name}") for name in ("first", "last", "among")}
        deliver(runs["first"], BACKLOG)
        for _ in range(10):
            deliver(runs["among"], BACKLOG // 10)
            deliver(runs["first"], 3000, to="gen_random_uuid()")  # each another run's
        deliver(runs["last"], BACKLOG)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE ravi_inboxmessage")
        yield runs
        transaction.set_rollback(True)


def read_by(function: Callable[..., Any], *args: Any) -> int:
    """How many rows of the table the database looks at for the function's statement."""
    plans: list[Any] = []

    def explain(sql: str, params: dict[str, Any]) -> list[Any]:
        places = {name: f"${place}" for place, name in enumerate(params, 1)}
        prepared = re.sub(r"%\((\w+)\)s", lambda hole: places[hole[1]], sql)
        with connection.cursor() as cursor:
            cursor.execute(f"PREPARE looked AS {prepared}")
            holes = ", ".join(["%s"] * len(params))
            how = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON)"
            cursor.execute(f"{how} EXECUTE looked({holes})", list(params.values()))
            ((plan,),) = cursor.fetchall()
            cursor.execute("DEALLOCATE looked")
        plans.extend(json.loads(plan) if isinstance(plan, str) else plan)
        return []

    with pytest.MonkeyPatch.context() as patch:
        world.patch(patch, "postgres_execute", explain)
        function(*args)
    (plan,) = plans
    return sum(map(_looked_at, _scans(plan["Plan"])))


def _scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if re.search("Scan", node["Node Type"]) and "Relation Name" in node:
        yield node
    for child in node.get("Plans", []):
        yield from _scans(child)


def _looked_at(scan: dict[str, Any]) -> int:
    removed = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
    return int(scan["Actual Loops"] * (scan["Actual Rows"] + removed))


def places(run: Run) -> list[int]:
    """From where to read: before all, in the middle, and near the end."""
    ids = list(InboxMessage.objects.filter(run=run).order_by("id").values_list("id", flat=True))
    return [0, ids[BACKLOG // 2], ids[-5]]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_it_looks_at_the_batch_alone(mode: str, backlogs: dict[str, Run]) -> None:
    """Also by a plan that the database keeps for all runs."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL plan_cache_mode = {mode}")
    for name, run in backlogs.items():
        for after in places(run):
            assert read_by(world.some_after, run, after, LIMIT) <= LIMIT + 1, name


def test_it_is_the_right_batch(backlogs: dict[str, Run]) -> None:
    run = backlogs["among"]
    for after in places(run):
        expected = InboxMessage.objects.filter(run=run, id__gt=after)
        found, more = world.some_after(run, after, LIMIT)
        assert [number for number, _ in found] == list(expected.order_by("id").values_list("id", flat=True)[:LIMIT])
        assert more == (expected.count() > LIMIT)
