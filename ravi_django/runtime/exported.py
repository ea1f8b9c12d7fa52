"""What the export of a user's rows leaves out: what tools with `visible="staff"` were called with, and gave."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ravi_django.models import HumanRequest, JournalEntry
from ravi_django.runtime import hidden
from ravi_django.runtime.entries import internalize, names_of_bodies
from ravi_django.runtime.hidden import MARK, WORDS

Fields = dict[str, Any]  # of a row in the form of dumpdata

_AUDITED = ("request", "version", "kind", "tool", "risk", "to", "arguments_hash", "arguments_sha256")


class Hiding:
    """For these runs. Rows whose mark lies in a body, or in another row, are found first."""

    def __init__(self, runs: Collection[Any]) -> None:
        self._entries: set[str] = set()
        self._bodies: set[str] = set()
        self._calls: set[tuple[str, str]] = set()  # run and tool
        marked = HumanRequest.objects.filter(run__in=runs, details__hidden=True).exclude(to="owner")
        self._requests = {str(id) for id in marked.values_list("id", flat=True)}
        for row in JournalEntry.objects.filter(run__in=runs, kind__in=hidden.KINDS).iterator(chunk_size=100):
            self._look(row)
        self._hides: dict[str, Callable[[Any, Fields], Fields]] = {
            "ravi.journalentry": self._entry,
            "ravi.turn": lambda pk, turn: _marked(turn, content=hidden.blocks(turn["content"])),
            "ravi.humanrequest": self._request,
            "ravi.streamframe": lambda pk, row: {**row, "body": hidden.frame(row["body"])},
            "ravi.auditrecord": self._audit,
            "ravi.outboxevent": self._event,
            "ravi.blob": lambda pk, blob: {"value": None, MARK: True} if pk in self._bodies else blob,
        }

    def shown(self, row: dict[str, Any]) -> dict[str, Any]:
        hide = self._hides.get(row["model"])
        return row if hide is None else {**row, "fields": hide(row["pk"], row["fields"])}

    def _look(self, row: JournalEntry) -> None:
        bodies = names_of_bodies(row)
        internalize([row])
        if hidden.is_marked(row.kind, row.request, row.result, row.name):
            self._entries.add(str(row.pk))
            self._bodies |= bodies
            if row.kind == "tool.call":
                self._calls.add((str(row.run_id), row.name))

    def _entry(self, pk: Any, entry: Fields) -> Fields:
        if str(pk) not in self._entries:
            return entry
        shown = hidden.entry(entry, whole=False)
        return shown if MARK in shown else {**entry, "request": None, "result": None, MARK: True}  # they are in bodies

    def _request(self, pk: Any, request: Fields) -> Fields:
        if str(pk) not in self._requests:
            return request
        return {**hidden.request_shown(request), "details": {MARK: True}, MARK: True}

    def _audit(self, pk: Any, record: Fields) -> Fields:
        detail = record["detail"]
        if detail.get("request") not in self._requests and (str(record["run_id"]), record["name"]) not in self._calls:
            return record
        return {**record, "detail": {name: detail[name] for name in _AUDITED if name in detail}, MARK: True}

    def _event(self, pk: Any, event: Fields) -> Fields:
        data = event["body"].get("data") or {}
        if data.get("request") not in self._requests:
            return event
        data = {name: WORDS if name in ("text", "reason") else value for name, value in data.items()}
        return {**event, "body": {**event["body"], "data": data}, MARK: True}


def _marked(turn: Fields, content: list[dict[str, Any]]) -> Fields:
    return turn if content == turn["content"] else {**turn, "content": content, MARK: True}
