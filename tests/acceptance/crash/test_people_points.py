"""A process dies at each point between a request's opening and its run's going on, by a real SIGKILL: the worker that
asks, the process that takes the answer, the worker that acts on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.acceptance.crash.lab import Lab
from tests.acceptance.crash.matrix import WORKERS
from tests.acceptance.crash.people_matrix import Case, PeopleMatrix
from tests.support.patience import seconds

BOUND_S = seconds(150)  # the first test waits while all of the cases run
SIDES = ("before", "after")
ASKING = (*(f"{name}.{side}" for name in ("request", "record", "suspend") for side in SIDES), "model_row.after")
ANSWERING = (*(f"answer.{side}" for side in SIDES), *(f"record.{side}:2" for side in SIDES))
WAKING = ("wake.before", "wake.after")  # where an answer is part of a transaction: else it wakes in its own commit
RESUMING = ("claim.before:2", "claim.after:2", "model.before:2", "model_row.before:2", "model_row.after:2")
# test_points.py has all points of each kind of effect, without an approval.
ACTING = {
    "once": (*(f"{name}.{side}" for name in ("started", "effect", "result") for side in SIDES),),
    "idempotent": ("effect.after",),
    "transactional": ("effect.after", "commit.after"),
}
HAPPENED: dict[str, set[int]] = {
    "question": set(),
    "proxy": set(),
    "deny": set(),
    "expire": set(),
    "parallel": {1, 3},
    "nested": {2},
    "inside": {2},
}

CASES = [
    *(Case("once", point) for point in (*ASKING, *ANSWERING, *RESUMING)),
    *(Case("once", point, caller=True) for point in (*ANSWERING, *WAKING)),
    *(Case("question", point) for point in ("request.after", "suspend.after", "answer.after")),
    *(Case("question", point, caller=True) for point in ("answer.after", "record.after:2", "wake.before")),
    *(
        Case("proxy", point)
        for point in ("request.after", "suspend.after", "spawn.after", "answer.after", "reply.before")
    ),
    *(Case("proxy", point, caller=True) for point in WAKING),
    *(Case("proxy", point) for point in ("reply.after", "model_row.before:2")),
    *(Case(kind, point) for kind, points in ACTING.items() for point in points),
    *(
        Case("inside", point)
        for point in ("request.after", "suspend.after", "answer.after", "claim.after:2", "effect.after")
    ),
    *(Case("edit", point) for point in ("answer.after", "effect.after")),
    *(Case("deny", point) for point in ("answer.after", "record.before:2", "claim.after:2", "model_row.before:2")),
    # the first and the last answer of four
    *(Case("parallel", f"request.after:{nth}") for nth in (1, 4)),
    *(Case("parallel", f"answer.{side}:{nth}") for nth in (1, 4) for side in SIDES),
    Case("parallel", "effect.after"),
    *(Case("nested", point) for point in ("request.after", "suspend.after", "answer.after", "effect.after")),
    *(Case("expire", point) for point in ("request.after", "suspend.after", "record.before:2", "record.after:2")),
    *(Case("escalate", f"record.{side}:{nth}") for nth in (2, 3) for side in SIDES),
    *(Case("escalate", point) for point in ("request.after", "answer.after")),
]

pytestmark = [pytest.mark.timeout(300), pytest.mark.crash]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with TemporaryDirectory(prefix="ravi-lab-") as folder, Lab(Path(folder), workers=WORKERS, max_runs=1) as lab:
        yield lab


@pytest.fixture(scope="module")
def matrix(lab: Lab, request: pytest.FixtureRequest) -> PeopleMatrix:
    items = [item for item in request.session.items if getattr(item, "function", None) is test_death_at]
    return PeopleMatrix(lab, [item.callspec.params["case"] for item in items])  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_death_at(matrix: PeopleMatrix, case: Case) -> None:
    run_id = matrix.wait_ended(case, BOUND_S)

    assert matrix.lab.struck(run_id), f"no process came to {case.point}"
    matrix.assert_right(run_id)
    assert set(matrix.happened(run_id)) == HAPPENED.get(case.story, {1})  # how often is among what is right
