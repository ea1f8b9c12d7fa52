"""Migrations of tables that workers write at that very moment."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import OperationalError, connection

from ravi_django import signal
from ravi_django.models import Run, Signal
from tests.support import world
from tests.support.runs import BOUND_S, LOCKS, in_background, make_run, on_postgresql, uncommitted, until

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql, pytest.mark.full]

OF_BEFORE = "ravi_run_idempotency_scope_"  # what kept a key to one run; its name goes on as Django likes


@pytest.fixture(autouse=True)
def _of_before() -> Iterator[None]:
    migrate("0008")
    # later columns that workers write
    run_sql("ALTER TABLE ravi_run ADD claim_at timestamptz NOT NULL DEFAULT now()")
    run_sql("ALTER TABLE ravi_session ADD erasure_id uuid")
    yield
    run_sql("ALTER TABLE ravi_run DROP claim_at")
    run_sql("ALTER TABLE ravi_session DROP erasure_id")
    call_command("migrate", "ravi", verbosity=0)


def migrate(to: str = "0009") -> None:
    call_command("migrate", "ravi", to, verbosity=0)


def run_sql(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def indexes() -> set[str]:
    of_runs = "SELECT indexrelid::regclass::text FROM pg_index WHERE indisvalid AND indrelid = 'ravi_run'::regclass"
    return {name for (name,) in run_sql(of_runs)}


def wanted_of_runs_and_held_of_signals() -> tuple[bool, bool]:
    ((wanted, held),) = run_sql(
        "SELECT bool_or(NOT granted AND relation = 'ravi_run'::regclass),"
        " bool_or(granted AND relation = 'ravi_signal'::regclass)"
        f" FROM {LOCKS} AND mode = 'AccessExclusiveLock'"
    )
    return bool(wanted), bool(held)


def wants_runs_for_itself() -> bool:
    return wanted_of_runs_and_held_of_signals()[0]


def identities(table: str) -> dict[str, int]:
    """What has been made anew has another one; `table` is of the catalog."""
    named, of = {"pg_index": ("indexrelid::regclass", "indrelid"), "pg_constraint": ("conname", "conrelid")}[table]
    identity = "indexrelid" if table == "pg_index" else "oid"
    return dict(run_sql(f"SELECT {named}::text, {identity} FROM {table} WHERE {of}::regclass::text LIKE 'ravi_%'"))


def left_by_a_build_that_was_interrupted(create: str) -> None:
    """There, and not valid: somebody else's transaction was waited for, for too long."""
    with uncommitted(lambda: Run.objects.update(tenant="x")), connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '100ms'")
        try:
            with pytest.raises(OperationalError):
                cursor.execute(create)
        finally:
            cursor.execute("RESET statement_timeout")


def made(index: str) -> str:
    return str(run_sql(f"SELECT pg_get_indexdef('{index}'::regclass)")[0][0])


def test_it_gives_up_lets_others_write_and_done_again_leaves_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts beside the indexes that an interrupted build has left."""
    world.patch(monkeypatch, "LIVE_LOCK_S", 0.1)
    world.patch(monkeypatch, "LIVE_TRIES", 2)
    held, other = make_run(), make_run()
    rows = list(Run.objects.order_by("id").values())
    run_sql("CREATE INDEX ravi_run_tree_idx ON ravi_run (id)")
    run_sql("CREATE UNIQUE INDEX ravi_run_idempotency_once ON ravi_run (id)")
    before = identities("pg_index")

    with uncommitted(lambda: list(Signal.objects.all())), pytest.raises(OperationalError):
        migrate()
    added = identities("pg_index").items() - before.items()
    assert {"ravi_run_idempotency_once", "ravi_run_tree_idx", "ravi_inbox_order"} <= dict(added).keys()
    assert not any(name.startswith(OF_BEFORE) for name in identities("pg_index"))
    tree, once = made("ravi_run_tree_idx"), made("ravi_run_idempotency_once")
    assert "(root_id) WHERE (root_id IS NOT NULL)" in tree
    assert "(idempotency_scope) WHERE (idempotency_scope IS NOT NULL)" in once

    world.patch(monkeypatch, "LIVE_TRIES", 10**6)
    with uncommitted(lambda: Run.objects.select_for_update().get(id=held.id)):
        migrating = in_background(migrate)
        until(wants_runs_for_itself)
        in_background(signal, other.id, "go", 1).result(BOUND_S)
        assert not migrating.done()
    migrating.result(BOUND_S)

    assert Signal.objects.count() == 1
    assert list(Run.objects.exclude(id=other.id).values()) == [row for row in rows if row["id"] == held.id]
    assert added <= identities("pg_index").items()


def test_an_index_that_is_not_valid_is_built_anew() -> None:
    make_run()
    left_by_a_build_that_was_interrupted(
        "CREATE INDEX CONCURRENTLY ravi_run_tree_idx ON ravi_run (root_id) WHERE root_id IS NOT NULL"
    )
    assert "ravi_run_tree_idx" in identities("pg_index").keys() - indexes()
    migrate()
    assert "ravi_run_tree_idx" in indexes()


def test_no_foreign_key_is_checked_again_nor_its_table_wanted() -> None:
    user = get_user_model().objects.create_user("ada")
    make_run(owner=user)
    before = identities("pg_constraint")
    with uncommitted(lambda: get_user_model().objects.select_for_update().get()):
        in_background(migrate).result(BOUND_S / 4)
    after = identities("pg_constraint")
    assert after.items() <= before.items()
    gone = before.keys() - after.keys()
    assert len(gone) == 3
    assert all(name.startswith(("ravi_signal_run_id_", "ravi_inboxmessage_run_id_", OF_BEFORE)) for name in gone)


def test_runs_are_locked_before_what_is_written_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "LIVE_LOCK_S", 0.1)
    world.patch(monkeypatch, "LIVE_TRIES", 10**6)
    migrate()
    run = make_run()
    held_meanwhile = []

    def waits_for_runs() -> bool:
        wanted, held = wanted_of_runs_and_held_of_signals()
        if wanted:
            held_meanwhile.append(held)
        return wanted

    with uncommitted(lambda: Run.objects.select_for_update().get(id=run.id)):
        back = in_background(migrate, "0008")
        until(waits_for_runs)
    back.result(BOUND_S)

    assert held_meanwhile == [False]
