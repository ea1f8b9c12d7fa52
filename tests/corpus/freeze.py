"""Freeze the journals of this release: `make freeze NAME=0.1.0` writes tests/corpus/journals/NAME/*.json.

Run it once for a release, and commit what it writes. Every later release replays all of them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from django.core.management.color import no_style
from django.db import connection, models
from django.db.models import Model

from ravi_django.models import Ask, Blob, HumanRequest, InboxMessage, JournalEntry, Run, Session, Signal, Turn

ROOT = Path(__file__).parents[2]
JOURNALS = Path(__file__).parent / "journals"
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
