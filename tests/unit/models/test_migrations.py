"""Every migration runs beside workers of the former release; each index is needed."""

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db import migrations
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED, Model, UniqueConstraint

from ravi_django.models.base import Owned

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


MODELS = [pytest.param(model, id=model.__name__) for model in apps.get_app_config("ravi").get_models()]
OWNED = [pytest.param(model, id=model.__name__) for model in Owned.__subclasses__()]


def beginnings(model: type[Model]) -> Iterator[str]:
    """The first columns of the indexes that every row is in."""
    of = (*model._meta.indexes, *(one for one in model._meta.constraints if isinstance(one, UniqueConstraint)))
    for one in of:
        if one.fields and one.condition is None:
            yield one.fields[0].lstrip("-")


@pytest.mark.parametrize("model", MODELS)
def test_no_column_has_an_index_beside_one_that_begins_with_it(model: type[Model]) -> None:
    own = {field.name for field in model._meta.concrete_fields if field.db_index and not field.unique}
    assert not own & set(beginnings(model))


@pytest.mark.parametrize("model", OWNED)
def test_rows_of_an_owner_are_found_by_an_index(model: type[Model]) -> None:
    """They are listed, and looked for when the user is deleted."""
    assert "owner" in beginnings(model)
