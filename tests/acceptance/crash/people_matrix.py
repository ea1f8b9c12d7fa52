"""Many runs side by side that wait for people, each with a point at which whoever asks, answers or acts dies."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.acceptance.crash.checks import TERMINAL, Evidence
from tests.acceptance.crash.lab import Lab
from tests.acceptance.crash.story import Step, Story
from tests.acceptance.crash.wishes import answer_to

LOOK_S = 0.1


def asks(tool: str, number: int, wish: str) -> Step:
    return Step(tool, number, {"wish": wish})


APPROVED = Story.of([asks("gated_once", 1, "approve")])
INSIDE = Story.of([asks("gated_inside", 2, "approve"), asks("gated_inside", 3, "deny")])
STORIES = {
    "question": Story.of([asks("ask_person", 1, "answer")]),
    "proxy": Story.of([asks("ask_proxy", 1, "answer")]),
    "idempotent": Story.of([asks("gated_idempotent", 1, "approve")]),
    "once": APPROVED,
    "transactional": Story.of([asks("gated_transactional", 1, "approve")]),
    "inside": Story.of([Step("delegate", 1, {"task": INSIDE.text, "to": "react/inside"})]),
    "edit": Story.of([asks("gated_once", 1, "edit")]),
    "deny": Story.of([asks("gated_once", 1, "deny")]),
    "parallel": Story.of(
        [
            asks("gated_once", 1, "approve"),
            asks("gated_once", 2, "deny"),
            asks("gated_transactional", 3, "edit"),
            asks("ask_person", 4, "answer"),
        ]
    ),
    "nested": Story.of([Step("delegate", 1, {"task": Story.of([asks("gated_once", 2, "edit")]).text})]),
    "expire": Story.of([asks("expiring", 1, "expire")]),
    "escalate": Story.of([asks("escalating", 1, "escalate")]),
}


@dataclass(frozen=True, slots=True)
class Case:
    story: str
    point: str  # at which somebody dies
    caller: bool = False  # the answer is given inside a transaction of the site's own

    def __str__(self) -> str:
        return f"{self.story}-{self.point}" + ("-in-a-transaction" if self.caller else "")


class PeopleMatrix:
    def __init__(self, lab: Lab, cases: Iterable[Case]) -> None:
        """All are submitted at once."""
        self.lab = lab
        self.runs = {case: lab.submit(STORIES[case.story], case.point) for case in cases}
        self._callers = {run_id for case, run_id in self.runs.items() if case.caller}

    def wait_ended(self, case: Case, bound_s: float) -> str:
        """Answer whatever anybody waits for until this run and all below it have ended (a proxy that died behind its
        reply may do so after who asked it); returns its id."""
        run_id, give_up = self.runs[case], time.monotonic() + bound_s
        while not self._ended(run_id):
            assert time.monotonic() < give_up, "\n".join(Evidence(self.lab, run_id).account(run_id))
            self._answer()
            self.lab.until(lambda: False, LOOK_S)
        return run_id

    def _ended(self, run_id: str) -> bool:
        tree = self.lab.query("SELECT status FROM ravi_run WHERE %s IN (id, root_id)", run_id)
        return bool(tree) and all(row["status"] in TERMINAL for row in tree)

    def _answer(self) -> None:
        for row in self.lab.query(
            "SELECT q.*, coalesce(r.root_id, r.id) AS tree FROM ravi_humanrequest q JOIN ravi_run r ON r.id = q.run_id "
            "WHERE q.status = 'pending' AND coalesce(q.not_before, now()) <= now() "
            # A run with several tasks waits for a second before it is suspended: it would have no second lease.
            "AND (r.status = 'suspended' OR q.created_at < now() - interval '3 seconds')"
        ):
            if row["kind"] == "uncertain":
                self.lab.decide(row)
            elif answer_to(SimpleNamespace(**row)) is not None:
                self.lab.ask("say", request=str(row["id"]), caller=str(row["tree"]) in self._callers)

    def assert_right(self, run_id: str) -> None:
        evidence = Evidence(self.lab, run_id)
        found = [str(each) for each in evidence.violations()]
        assert not found, "\n".join([*found, *evidence.account(run_id)])

    def happened(self, run_id: str) -> list[int]:
        """The numbers of the tree's effects that a person had to approve."""
        mine = {str(row["id"]) for row in self.lab.query("SELECT id FROM ravi_run WHERE %s IN (id, root_id)", run_id)}
        gated = [line["number"] for line in self.lab.ledger() if line["run"] in mine and line["kind"] != "model"]
        rows: list[dict[str, Any]] = self.lab.query(
            "SELECT number FROM lab_row WHERE run = ANY(%s::uuid[])", list(mine)
        )
        return sorted([*gated, *(row["number"] for row in rows)])
