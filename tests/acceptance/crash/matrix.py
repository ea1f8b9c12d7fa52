"""Many runs side by side in one laboratory, each with its own point at which a process dies or falls asleep.

The workers take one run each at a time: what befalls one of them befalls one run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.acceptance.crash.checks import TERMINAL, Evidence
from tests.acceptance.crash.lab import Lab
from tests.acceptance.crash.story import EFFECTS, Step, Story
from tests.support.patience import BOUND_S, seconds

STILL_S = seconds(20)  # without progress: then it is reported as a hang
WORKERS = 4
ONLY = {"started": ("at_most_once",), "commit": ("transactional",)}  # the points that not every kind of effect has
LATER = {"model": 2, "model_row": 2}  # where the first time would say little: nothing is recorded before it
WAITS = ("suspend", "signal", "consume", "touch", "spawn", "ask", "reply")
NO_EFFECT = (*WAITS, "claim", "dispatch", "model", "release")  # where none is open: its kind makes no difference
# After its started row and before its result's, nobody but the world knows whether an at-most-once effect happened.
UNCERTAIN = {"started.after": False, "effect.before": False, "effect.after": True, "result.before": True}


def cases_at(points: Iterable[str]) -> list[Any]:
    """Each point with one kind of effects, and with the others behind the mark `crash`. The kind is at-most-once where
    a death makes the effect uncertain; elsewhere the kinds take turns. A point of NO_EFFECT has one kind."""
    cases = []
    for number, point in enumerate(points):
        kinds = ONLY.get(point.partition(".")[0], EFFECTS)
        gate = "at_most_once" if point in UNCERTAIN else kinds[number % len(kinds)]
        for kind in (gate,) if point.startswith(NO_EFFECT) else kinds:
            marks = () if kind == gate else (pytest.mark.crash,)
            cases.append(pytest.param(point, kind, id=f"{point}-{kind}", marks=marks))
    return cases


def story_for(point: str, kind: str) -> Story:
    """The shortest run that comes there with effects of this kind behind and before it. One that waits signals itself,
    and has a child that it asks and one whose end it waits for."""
    if not point.startswith(WAITS):
        return Story.of([Step(kind, 1)], [Step(kind, 2)])
    asked, hired = (Story.of([Step(kind, number)]) for number in (6, 7))  # numbers are of the tree
    return Story.of(
        [Step(kind, 1)],
        [Step("poke", 2)],
        [Step("delegate", 3, {"task": asked.text})],
        [Step("hire", 4, {"task": hired.text})],
        [Step(kind, 5)],
    )


class Matrix:
    def __init__(self, lab: Lab, cases: Iterable[tuple[str, str]], *, how: str = "") -> None:
        """A case is a point and a kind of effects; all are submitted at once. `how` is empty, or STOP."""
        self.lab = lab
        self._how = how
        self.runs = {case: self._submit(*case) for case in cases}

    def _submit(self, point: str, kind: str) -> str:
        times = LATER.get(point.partition(".")[0], 1)
        return self.lab.submit(story_for(point, kind), ":".join(filter(None, (point, str(times), self._how))))

    def wait_settled(self, run_id: str) -> None:
        """Until it and the runs below it have ended, or it waits for a person."""
        moves = -1
        while not self.lab.until(lambda: self._settled(run_id), STILL_S):
            before, moves = moves, self.lab.query("SELECT sum(next_seq) AS moves FROM ravi_run")[0]["moves"]
            assert moves > before, self.lab.run(run_id)

    def _settled(self, run_id: str) -> bool:
        if self.lab.run(run_id)["status"] not in (*TERMINAL, "blocked"):
            return bool(self.request(run_id))
        # A child that replied and died ends later than its parent, which has the reply.
        below = "SELECT 1 FROM ravi_run WHERE root_id = %s AND status IN ('queued', 'pending', 'running', 'suspended')"
        return not self.lab.query(below, run_id)

    def request(self, run_id: str) -> dict[str, Any] | None:
        sql = "SELECT * FROM ravi_humanrequest WHERE run_id = %s AND status = 'pending'"
        return next(iter(self.lab.query(sql, run_id)), None)

    def happened(self, run_id: str) -> int:
        """How often the run's at-most-once effects did."""
        return sum(line["run"] == run_id and line["kind"] == "at_most_once" for line in self.lab.ledger())

    def decide(self, run_id: str, *, caller: bool = False) -> None:
        """As soon as a person may, say what the ledger says; the run comes to its end."""
        request = self.request(run_id)
        assert request is not None, self.lab.run(run_id)
        assert self.lab.until(lambda: request["id"] in [each["id"] for each in self.lab.undecided()], BOUND_S)
        self.lab.decide(request, caller=caller)
        ended = self.lab.until(lambda: self.lab.run(run_id)["status"] in TERMINAL, BOUND_S)
        assert ended, self.lab.run(run_id)

    def assert_right(self, run_id: str) -> None:
        evidence = Evidence(self.lab, run_id)
        found = [str(each) for each in evidence.violations()]
        assert not found, "\n".join([*found, *evidence.account(run_id)])
