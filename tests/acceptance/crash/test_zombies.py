"""A worker falls asleep at a named point, past its lease, and goes on when another has taken its run over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.acceptance.crash.lab import Lab
from tests.acceptance.crash.matrix import UNCERTAIN, WORKERS, Matrix, cases_at
from tests.acceptance.crash.story import Step, Story
from tests.support.patience import BOUND_S

POINTS = (
    "claim.after",
    "model.after",
    "model_row.before",
    "started.before",
    "started.after",
    "effect.before",
    "effect.after",
    "result.before",
    "commit.before",
    "suspend.before",
    "consume.before",
    "spawn.before",
    "ask.before",
    "reply.before",
    "release.before",
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.crash]  # the first test waits while all of the cases run


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with TemporaryDirectory(prefix="ravi-lab-") as folder, Lab(Path(folder), workers=WORKERS, max_runs=1) as lab:
        yield lab


@pytest.fixture(scope="module")
def matrix(lab: Lab, request: pytest.FixtureRequest) -> Matrix:
    items = [item for item in request.session.items if getattr(item, "originalname", "") == test_sleep_at.__name__]
    cases = [(item.callspec.params["point"], item.callspec.params["kind"]) for item in items]  # type: ignore[attr-defined]
    return Matrix(lab, cases, how="STOP")


@pytest.mark.parametrize(("point", "kind"), cases_at(POINTS))
def test_sleep_at(matrix: Matrix, point: str, kind: str) -> None:
    lab, run_id = matrix.lab, matrix.runs[point, kind]

    matrix.wait_settled(run_id)
    assert lab.until(lambda: lab.sleepers.up(run_id), BOUND_S), f"no process slept at {point}"

    # A sleeper that no worker took over in time on a busy machine goes on itself. A later takeover may ask a person.
    overslept = run_id in lab.sleepers.overslept
    if kind == "at_most_once" and (matrix.request(run_id) if overslept else point in UNCERTAIN):
        matrix.decide(run_id)
    matrix.assert_right(run_id)


def test_a_worker_that_wakes_after_the_decision_does_not_act_on_it(lab: Lab) -> None:
    """It slept between its started row and the effect; a person has had it run again by then."""
    matrix = Matrix(lab, [])
    run_id = lab.submit(Story.of([Step("at_most_once", 1)]), "started.after:1:STOP")
    lab.sleepers.kept.add(run_id)
    matrix.wait_settled(run_id)
    matrix.decide(run_id)

    lab.sleepers.wake(run_id)
    assert lab.until(lambda: lab.sleepers.up(run_id), BOUND_S)

    assert matrix.happened(run_id) == 1
    matrix.assert_right(run_id)
