"""What a request to people is, said a second time: who may answer it, whom it is put to when, and what is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from ravi_django.models import AuditRecord, HumanRequest, Run

GROUPS = {"fay": "finance", "ann": "finance", "dan": "directors", "bea": "board"}
NAMES = ("fay", "ann", "dan", "bea", "eve", "op")  # ann owns runs, op may reassign and answers nothing, eve is nobody


@dataclass
class People:
    """Who is there now."""

    gone: set[str] = field(default_factory=set)
    stands_in: dict[str, str] = field(default_factory=dict)  # by whose place it is in

    def meant(self, name: str, to: str, asked: Asked) -> bool:
        """In their own right."""
        if name in self.gone or (asked.four_eyes and name == asked.owner and to != "owner"):
            return False
        return to in (f"group:{GROUPS.get(name)}", f"user:{name}") or (to == "owner" and name == asked.owner)

    def somebody(self, to: str, asked: Asked) -> bool:
        return any(self.meant(name, to, asked) for name in NAMES)

    def right(self, name: str | None, to: str, asked: Asked) -> tuple[str, str] | None:
        """Who answers, and in whose place; None: they may not."""
        if name is None or self.meant(name, to, asked):
            return name or "", ""
        if name in self.gone or (asked.four_eyes and name == asked.owner and to != "owner"):
            return None
        places = (other for other, by in self.stands_in.items() if by == name and self.meant(other, to, asked))
        return next(((name, other) for other in places), None)

    def refusal(self, name: str | None, asked: Asked) -> str:
        """Of an answer: "", "forbidden" to who may read it, "not found"."""
        if self.right(name, asked.to, asked):
            return ""
        return "forbidden" if name == asked.owner and name not in self.gone else "not found"


@dataclass
class Asked:
    """A request and its run."""

    id: UUID
    run: UUID
    kind: str
    owner: str | None
    four_eyes: bool
    steps: list[tuple[str, float | None]]
    opened: datetime
    not_before: datetime | None = None
    run_status: str = "suspended"
    status: str = "pending"
    version: int = 1
    level: int = 0
    to: str = ""
    escalates_at: datetime | None = None
    expires_at: datetime | None = None
    passed: list[list[str]] = field(default_factory=list)
    answer: tuple[str, str, str] | None = None  # action, by, instead of
    arguments: Any = None  # that the answer puts in the place of the request's
    records: list[list[Any]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.status == "pending"

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def begins(self, now: datetime, people: People) -> None:
        """It is put to the first step that means somebody, which has all its time; to the first where none does."""
        steps = range(len(self.steps)) if len(self.steps) > 1 or self.told else ()
        self.put_to(next((step for step in steps if people.somebody(self.steps[step][0], self)), 0), self.start(now))
        self.became("opened", "opened")

    def start(self, now: datetime) -> datetime:
        return max(now, self.not_before or now)

    def put_to(self, level: int, begins: datetime) -> None:
        self.level, (self.to, within) = level, self.steps[level]
        is_last = level == len(self.steps) - 1
        self.escalates_at = None if is_last or within is None else begins + timedelta(seconds=within)

    def is_due(self, now: datetime) -> bool:
        return self.is_open and self.escalates_at is not None and self.escalates_at <= now and not self.is_over(now)

    def escalate(self, now: datetime, people: People) -> bool:
        """To the step whose time it is; one that means nobody leaves its time to the next."""
        begins = self.escalates_at
        for level in range(self.level + 1, len(self.steps)):
            to, within = self.steps[level]
            assert begins is not None
            ends = None if level == len(self.steps) - 1 or within is None else begins + timedelta(seconds=within)
            if (ends is None or now < ends) and people.somebody(to, self):
                self.put_to(level, begins)
                self.changed("escalated", "changed")
                return True
            begins = ends
        self.escalates_at = None
        return False

    def reassign(self, to: str) -> None:
        self.steps[self.level] = (to, self.steps[self.level][1])
        self.to = to
        self.changed("reassigned", "changed")

    def changed(self, event: str, told: str) -> None:
        self.version += 1
        self.became(event, told)

    def became(self, event: str, told: str) -> None:
        self.records.append([event, self.version])
        self.told.append(told)

    def close(self, status: str) -> None:
        if self.is_open:
            self.status = status
            self.changed(status, "closed")

    def reopen(self, now: datetime, people: People) -> None:
        """Its run is retried: it is asked again from the first step on, with all the time that it had."""
        if self.status == "cancelled" and self.answer is None:
            self.expires_at = self.expires_at and now + (self.expires_at - self.opened)
            self.status, self.opened = "pending", now
            self.version += 1
            self.begins(now, people)


class Row(NamedTuple):
    """A request as the database has it."""

    status: str
    version: int
    level: int
    to: str
    escalates_at: datetime | None
    expires_at: datetime | None
    answer: tuple[str, str, str] | None
    arguments: Any
    answered_by: str | None
    shown: Any  # the arguments that were asked about
    run_status: str


def read() -> dict[UUID, Row]:
    found = {}
    for row in HumanRequest.objects.select_related("run", "answered_by"):
        said = row.answer or {}
        found[row.id] = Row(
            row.status,
            row.version,
            row.level,
            row.to,
            row.escalates_at,
            row.expires_at,
            (said["action"], said["by"], said.get("instead_of", "")) if said else None,
            said.get("arguments"),
            row.answered_by and row.answered_by.username,
            row.arguments,
            row.run.status,
        )
    return found


def recorded() -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = {}
    for name, detail in AuditRecord.objects.filter(event="request").order_by("id").values_list("name", "detail"):
        found.setdefault(detail["request"], []).append([name, detail["version"]])
    return found


def check(model: Asked, row: Row, records: list[list[Any]], told: list[str]) -> None:
    """The row, its records and what was told of it are what the model says."""
    answered = (model.answer and model.answer[1]) or None
    expected = (model.status, model.version, model.level, model.to, model.escalates_at, model.expires_at)
    assert row[:6] == expected
    assert (row.answer, row.arguments, row.answered_by) == (model.answer, model.arguments, answered)
    assert row.shown == (ARGUMENTS if model.kind == "approval" else None), "what was asked about was changed"
    assert row.run_status == model.run_status
    assert records == model.records
    assert told == model.told


ARGUMENTS = {"amount": 5}


def status_of(run: UUID) -> str:
    return Run.objects.values_list("status", flat=True).get(id=run)
