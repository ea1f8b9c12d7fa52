"""Emptying the database after a test that commits.

Django truncates every table and makes the permissions anew, some 60 ms each time. Most tests write a few rows into a
few tables: here those rows are deleted, and the permissions stay. A table that has grown is truncated.
"""

from __future__ import annotations

from functools import cache

from django.apps import apps
from django.db import connection, transaction
from django.db.models import Max
from django.test import TransactionTestCase

KEPT = ("contenttypes.ContentType", "auth.Permission")  # made by `migrate`; what a test has added goes
GROWN = 1024 * 1024  # bytes

_django_does = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]


def install() -> None:
    _statements()  # before the first test adds permissions
    TransactionTestCase._fixture_teardown = _tear_down  # type: ignore[attr-defined]


def _tear_down(case: TransactionTestCase) -> None:
    if case.available_apps is None:
        empty()
    else:
        _django_does(case)


@cache
def _statements(prefix: str = "") -> list[str]:
    """What is locked has no writer any more: a thread that a test has left behind ends first, as with TRUNCATE."""
    kept = [apps.get_model(label) for label in KEPT]
    own = {model._meta.db_table for model in kept}
    tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - own)
    tables = [name for name in tables if name.startswith(prefix)]
    added = [
        f'DELETE FROM "{model._meta.db_table}" WHERE id > {model.objects.aggregate(last=Max("id"))["last"]};'
        for model in reversed(kept)
    ]
    if connection.vendor == "sqlite":
        return [*(f'DELETE FROM "{name}"' for name in tables), *added]
    names = ", ".join(f'"{name}"' for name in tables)
    array = ", ".join(f"'\"{name}\"'" for name in tables)
    block = f"""
DO $$
DECLARE name text; written boolean;
BEGIN
  LOCK TABLE {names} IN EXCLUSIVE MODE;
  IF current_setting('is_superuser') = 'on' THEN SET LOCAL session_replication_role = replica; END IF;
  FOREACH name IN ARRAY ARRAY[{array}] LOOP
    IF pg_relation_size(name::regclass) > {GROWN} THEN
      EXECUTE 'TRUNCATE ' || name || ' CASCADE';
    ELSE
      EXECUTE 'SELECT EXISTS (SELECT FROM ' || name || ')' INTO written;
      IF written THEN EXECUTE 'DELETE FROM ' || name; END IF;
    END IF;
  END LOOP;
  {"".join(added)}
END $$"""
    return [block]


def empty(prefix: str = "") -> None:
    """All tables, or those whose names begin with `prefix`."""
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in _statements(prefix):
            cursor.execute(statement)
