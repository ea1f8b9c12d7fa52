"""What the migrations come to: the same from nothing, from the release before, and by Django's own operations."""

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, migrations, router
from django.db.migrations.loader import MigrationLoader

from ravi_django.models import Run
from tests.support import template, world
from tests.support.runs import make_run, on_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

POSTGRESQL = """
SELECT tablename, indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'ravi_%'
UNION ALL SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) || convalidated
FROM pg_constraint WHERE conrelid::regclass::text LIKE 'ravi_%'
UNION ALL SELECT indrelid::regclass::text, indexrelid::regclass::text, 'valid ' || indisvalid
FROM pg_index WHERE indrelid::regclass::text LIKE 'ravi_%'
UNION ALL SELECT table_name, column_name, concat_ws(' ', data_type, is_nullable, column_default)
FROM information_schema.columns WHERE table_name LIKE 'ravi_%'
"""
SQLITE = "SELECT tbl_name, name, sql FROM sqlite_master WHERE tbl_name LIKE 'ravi_%'"


@pytest.fixture
def left_as_it_was() -> Iterator[None]:
    yield
    migrate()


def migrate(to: str = "") -> None:
    call_command("migrate", "ravi", *filter(None, [to]), verbosity=0)


def schema() -> set[tuple[str, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(POSTGRESQL if connection.vendor == "postgresql" else SQLITE)
        return set(cursor.fetchall())


def from_nothing() -> set[tuple[str, ...]]:
    """On PostgreSQL that of what tests copy, which was made so. The words of SQLite differ from process to process."""
    if connection.vendor == "sqlite":
        migrate("zero")
        migrate()
        return schema()
    name = f"{connection.settings_dict['NAME']}_from_nothing"
    with psycopg.connect(template.database(os.environ["RAVI_TEST_POSTGRES"], name)) as database:
        found = set(database.execute(POSTGRESQL).fetchall())
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")
    return found


@pytest.mark.full
@pytest.mark.usefixtures("left_as_it_was")
def test_from_nothing_and_from_the_release_before_it_is_the_same() -> None:
    migrate("zero")
    assert not schema()
    migrate("0008")
    before = schema()
    migrate()
    upgraded = schema()
    assert upgraded == from_nothing() != before


@pytest.mark.full
@pytest.mark.usefixtures("left_as_it_was")
@on_postgresql
def test_there_and_back_it_is_what_django_s_own_operations_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    live = schema()
    migrate("0008")
    live_back = schema()

    for ours, django_s in (
        (world.AddIndex, migrations.AddIndex), (world.AddUnique, migrations.AddConstraint),
        (world.AlterField, migrations.AlterField), (world.AlterDbIndex, migrations.AlterField),
    ):  # fmt: skip
        monkeypatch.setattr(ours, "database_forwards", django_s.database_forwards)
    migrate()
    assert schema() == live
    migrate("0008")
    assert schema() == live_back


@pytest.mark.full
@pytest.mark.usefixtures("left_as_it_was")
def test_runs_of_before_are_kept_and_a_key_is_still_that_of_one() -> None:
    first, second = make_run(), make_run()
    Run.objects.filter(id=first.id).update(idempotency_scope="key")
    columns = [field.attname for field in Run._meta.concrete_fields if field.name != "claim_at"]  # of 0008
    rows = list(Run.objects.order_by("id").values(*columns))
    migrate("0008")
    assert list(Run.objects.order_by("id").values(*columns)) == rows
    migrate()
    assert list(Run.objects.order_by("id").values(*columns)) == rows
    with pytest.raises(IntegrityError):
        Run.objects.filter(id=second.id).update(idempotency_scope="key")


class Elsewhere:
    """This app's tables are in another database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return app_label != "ravi"


def test_nothing_is_done_in_a_database_that_has_not_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "routers", [Elsewhere()])
    loader = MigrationLoader(connection)
    migration = loader.get_migration("ravi", "0009_lean_indexes")
    before = loader.project_state(("ravi", "0008_social"))
    with connection.schema_editor(collect_sql=True, atomic=False) as forwards:
        after = migration.apply(before.clone(), forwards, collect_sql=True)
    with connection.schema_editor(collect_sql=True, atomic=False) as back:
        migration.unapply(before.clone(), back, collect_sql=True)
    said = [*forwards.collected_sql, *back.collected_sql]
    assert after.models["ravi", "run"].fields["owner"].db_index is False
    assert [sql for sql in said if not sql.startswith(("--", "PRAGMA"))] == []
