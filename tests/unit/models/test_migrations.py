"""Every migration can run while workers of the former release are at work."""

from __future__ import annotations

from django.db import migrations
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED

FORWARD_SAFE = (
    *(migrations.AddField, migrations.CreateModel, migrations.AddIndex, migrations.RemoveIndex),
    migrations.AlterModelOptions,  # names, and what is ordered by default: no SQL
)
LOOSENED = {
    "0012_secrets": {"secret"},  # longer  # a constraint or an index less: what was right stays right
    "0004_archive_unchecked": {"archive"},
    "0009_lean_indexes": {"owner", "parent", "root", "parent_session", "idempotency_scope", "run", "agent"},
    "0016_erasure_indexes": {"owner"},  # no longer checked
}
RESTATED = {"ravi_run_idempotency_once"}  # constraints in place of others that said the same
FIRST = ("0001_initial", "0002_fillfactor")  # of the first release: there was none before


def test_what_a_migration_adds_the_former_release_need_not_know_of():
    found = MigrationLoader(None, ignore_no_migrations=True).disk_migrations
    ours = [migration for (app, name), migration in sorted(found.items()) if app == "ravi" and name not in FIRST]
    assert ours

    for migration in ours:
        made = [operation for operation in migration.operations if isinstance(operation, migrations.CreateModel)]
        new = {operation.name.lower() for operation in made}  # tables that the former release does not write
        for operation in migration.operations:
            if getattr(operation, "model_name", "") in new:
                continue
            if isinstance(operation, migrations.AddField):
                field = operation.field
                assert field.null or field.db_default is not NOT_PROVIDED, (migration.name, operation.name)
            elif isinstance(operation, migrations.AlterField):
                assert operation.name in LOOSENED.get(migration.name, ())
            elif isinstance(operation, migrations.AddConstraint):
                assert operation.constraint.name in RESTATED, (migration.name, operation)
            else:
                assert isinstance(operation, FORWARD_SAFE), (migration.name, operation)
