"""The name of a deleted user goes from other people's rows: a pseudonym takes its place.

Names are text, in columns and in JSON, and no index finds them. So one pass goes through the tables, in the order of
their keys; deletions that come at the same time share it. `Erasure.position` says how far it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.apps import apps
from django.db.models import Model, Q, TextField
from django.db.models.functions import Cast

from ravi_django.db import transaction
from ravi_django.models import (
    TERMINAL,
    AuditRecord,
    Erasure,
    HumanRequest,
    JournalEntry,
    OutboxEvent,
    Publication,
    Run,
    StickyDecision,
)

ROWS = 5_000  # looked at in one transaction
MOST = 100  # names that one pass looks for
DECIDED = ("by", "instead_of", "revoked_by")  # keys of JSON that name a person
BEGUN = "names"  # the position before the first row


@dataclass(frozen=True, slots=True)
class Named:
    """Where names are: columns of text or JSON, and when a row was written: a later one is of another user."""

    model: type[Model]
    columns: tuple[str, ...]
    written: str = "created_at"


def _tables() -> list[Named]:
    found = [
        Named(HumanRequest, ("to", "steps", "passed", "answer")),
        Named(AuditRecord, ("detail",)),
        Named(StickyDecision, ("decided_by_name",)),
        Named(Run, ("cancel_reason", "error")),
        Named(OutboxEvent, ("body",)),
        Named(Publication, ("body",)),
    ]
    if apps.is_installed("django.contrib.admin"):
        from django.contrib.admin.models import LogEntry

        found.append(Named(LogEntry, ("change_message",), "action_time"))
    return found


@dataclass
class Name:
    name: str
    pseudonym: str
    until: datetime

    @cached_property
    def _places(self) -> re.Pattern[str]:
        return re.compile(rf"(\b(?:cancelled by|in place of) |\buser:){re.escape(self.name)}(?![\w@+-]|\.\w)")

    def without(self, value: Any, key: str = "") -> Any:
        """The value with the pseudonym in the name's places. The name alone counts under the keys DECIDED."""
        if isinstance(value, dict):
            return {inner: self.without(item, inner) for inner, item in value.items()}
        if isinstance(value, list):
            return [self.without(item, key) for item in value]
        if not isinstance(value, str) or self.name not in value:
            return value
        if value == self.name:
            return self.pseudonym if key in DECIDED else value
        return self._places.sub(rf"\g<1>{self.pseudonym}", value)


def forget_names() -> bool:
    """One batch of the pass that is furthest; whether there was one. The erasures whose pass is over are deleted."""
    furthest = Erasure.objects.exclude(position="").order_by("-position").first()
    if furthest is None:
        return False
    group = list(Erasure.objects.filter(position=furthest.position).order_by("id")[:MOST])
    ids = [erasure.id for erasure in group]
    names = [Name(one.name, one.pseudonym, one.created_at) for one in group if one.name]
    with transaction.atomic():
        position = _pass_on(furthest.position, names) if names else ""
        rows = Erasure.objects.filter(id__in=ids, position=furthest.position)  # unless another sweep has moved it on
        if position:
            rows.update(position=position)
        else:
            rows.delete()
    return True


def _pass_on(position: str, names: Sequence[Name]) -> str:
    """Look at the next rows; where the next batch begins, empty at the end. A position is the place of the table, with
    a leading letter that sorts behind BEGUN, and the last key."""
    tables = _tables()
    _, place, last = ("", "0", "") if position == BEGUN else position.split(":", 2)
    table = tables[int(place)]
    key = table.model._meta.pk
    assert key is not None
    rows = table.model._default_manager.order_by("pk")
    if last:
        rows = rows.filter(pk__gt=key.to_python(last))
    ids = list(rows.values_list("pk", flat=True)[:ROWS])
    if ids:
        _replace(table, ids, names)
    if len(ids) == ROWS:
        return f"names:{place}:{ids[-1]}"
    return f"names:{int(place) + 1}:" if int(place) + 1 < len(tables) else ""


def _replace(table: Named, ids: Sequence[Any], names: Sequence[Name]) -> None:
    rows = table.model._default_manager.filter(pk__range=(ids[0], ids[-1]))
    for row in _with(rows, table.columns, names):
        if _rename(row, table, names):
            row.save(update_fields=list(table.columns))
            if isinstance(row, HumanRequest | Run):
                _in_journal(row, names)


def _with(rows: Any, columns: Sequence[str], names: Sequence[Name]) -> list[Any]:
    """The rows with one of the names somewhere in these columns, as text."""
    found = Q()
    for name in names:
        for column in columns:
            for text in {name.name, *(json.dumps(name.name, ensure_ascii=ascii)[1:-1] for ascii in (True, False))}:
                found |= Q(**{f"text_{column}__contains": text})
    texts = {f"text_{column}": Cast(column, TextField()) for column in columns}
    locked = rows.select_for_update(of=("self",), no_key=True).order_by("pk")
    return list(locked.annotate(**texts).filter(found))


def _rename(row: Any, table: Named, names: Sequence[Name]) -> bool:
    changed = False
    for name in names:
        if getattr(row, table.written) > name.until:
            continue
        for column in table.columns:
            before = getattr(row, column)
            after = name.without(before, "by" if column == "decided_by_name" else "")
            if after != before:
                setattr(row, column, after)
                changed = True
    return changed


def _in_journal(row: HumanRequest | Run, names: Sequence[Name]) -> None:
    """What the run was told of a decision, or of its cancellation. A live run replays it: its rows stay."""
    run = row if isinstance(row, Run) else row.run
    if run.status in TERMINAL:
        table = Named(JournalEntry, ("result", "error"), "finished_at")
        for entry in _with(JournalEntry.objects.filter(run=run), table.columns, names):
            if _rename(entry, table, names):
                entry.save(update_fields=list(table.columns))
