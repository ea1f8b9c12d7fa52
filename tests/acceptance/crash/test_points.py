"""A process dies at each named point of a run with effects of each kind, by a real SIGKILL; others finish the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.acceptance.crash.lab import Lab
from tests.acceptance.crash.lab_app.crash_points import POINTS
from tests.acceptance.crash.matrix import UNCERTAIN, WORKERS, Matrix, cases_at
from tests.acceptance.crash.story import CHECKED, OUTLIVING, Step, Story
from tests.support.columns import KINDS
from tests.support.patience import BOUND_S

PEOPLES = ("request", "answer", "record", "wake")  # come only after another death: see test_death_while_deciding
CASES = cases_at(f"{name}.{side}" for name in POINTS if name not in PEOPLES for side in ("before", "after"))

pytestmark = pytest.mark.timeout(300)  # the first test waits while all of the cases run


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with TemporaryDirectory(prefix="ravi-lab-") as folder, Lab(Path(folder), workers=WORKERS, max_runs=1) as lab:
        yield lab


@pytest.fixture(scope="module")
def matrix(lab: Lab, request: pytest.FixtureRequest) -> Matrix:
    items = [item for item in request.session.items if getattr(item, "function", None) is test_death_at]
    return Matrix(lab, [(item.callspec.params["point"], item.callspec.params["kind"]) for item in items])  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def asking(lab: Lab, request: pytest.FixtureRequest) -> dict[tuple[Any, ...], str]:
    """The runs of the tests below, all submitted at once, by their parameters."""
    tests = (test_the_check_of_an_effect_that_its_worker_died_over, test_death_while_deciding)
    items = [item for item in request.session.items if getattr(item, "function", None) in tests]
    wanted = [item.callspec.params for item in items]  # type: ignore[attr-defined]
    return {
        tuple(case.values()): lab.submit(Story.of([Step(CHECKED, 1, {"known": case["known"]})]), case["point"])
        if "known" in case
        else lab.submit(Story.of([Step("at_most_once", 1)]), "effect.after", "{name}.{side}".format_map(case))
        for case in wanted
    }


@pytest.mark.parametrize(("point", "kind"), CASES)
def test_death_at(matrix: Matrix, point: str, kind: str) -> None:
    run_id = matrix.runs[point, kind]

    matrix.wait_settled(run_id)

    assert matrix.lab.struck(run_id), f"no process came to {point}"
    if kind == "at_most_once" and point in UNCERTAIN:
        assert matrix.happened(run_id) == UNCERTAIN[point]
        matrix.decide(run_id)
    matrix.assert_right(run_id)


@pytest.mark.parametrize(
    ("point", "known", "outcome"),
    [("effect.after", True, "happened"), ("started.after", True, "run_again"), ("effect.after", False, "unknown")],
)
def test_the_check_of_an_effect_that_its_worker_died_over(lab, asking, point, known, outcome) -> None:
    matrix, run_id = Matrix(lab, []), asking[point, known, outcome]

    matrix.wait_settled(run_id)
    if outcome == "unknown":
        matrix.decide(run_id)

    assert lab.struck(run_id), f"no process came to {point}"
    checked = "SELECT result FROM ravi_journalentry WHERE run_id = %s AND kind = %s"
    rows = lab.query(checked, run_id, KINDS["effect.checked"])
    assert [row["result"]["outcome"] for row in rows] == [outcome]
    people = lab.query("SELECT 1 FROM ravi_humanrequest WHERE run_id = %s", run_id)
    assert bool(people) == (outcome == "unknown")
    assert sum(line["run"] == run_id and line["kind"] == CHECKED for line in lab.ledger()) == 1
    matrix.assert_right(run_id)


@pytest.mark.parametrize(
    ("name", "dies"),
    [
        pytest.param(name, dies, marks=() if (name, dies) == ("late", False) else pytest.mark.crash)
        for name in OUTLIVING
        for dies in (False, True)
    ],
)
def test_a_tool_that_outlives_its_timeout_acts_once(
    lab: Lab, asking: dict[tuple[Any, ...], str], name: str, dies: bool
) -> None:
    """Its late result settles it; where its worker died before that, the check does, or a person."""
    # Their first deaths take a worker along, with the code of a tool that another run has given up.
    assert lab.until(lambda: all(map(lab.struck_once, asking.values())), BOUND_S)
    matrix, run_id = Matrix(lab, []), lab.submit(Story.of([Step(name, 1)]), *(["effect.after"] if dies else []))

    if "checked" not in name:
        assert lab.until(lambda: matrix.request(run_id), BOUND_S)
    if dies and "checked" not in name:
        assert lab.until(lambda: lab.struck(run_id), BOUND_S)
        matrix.decide(run_id)
    assert lab.until(lambda: lab.run(run_id)["status"] == "completed", BOUND_S)

    assert sum(line["run"] == run_id and line["kind"] == name for line in lab.ledger()) == 1
    people = lab.query("SELECT answer->>'by' AS by FROM ravi_humanrequest WHERE run_id = %s", run_id)
    assert len(people) == ("checked" not in name)
    assert dies or all(row["by"].startswith("worker ") for row in people)
    matrix.assert_right(run_id)


@pytest.mark.parametrize(("name", "side"), [("request", "after"), ("wake", "before")])
def test_death_while_deciding(lab: Lab, asking: dict[tuple[Any, ...], str], name: str, side: str) -> None:
    """Of the worker that asks a person about an uncertain effect, or of the process that takes the answer. The other
    points come in test_people_points.py."""
    matrix, run_id = Matrix(lab, []), asking[name, side]

    matrix.wait_settled(run_id)
    matrix.decide(run_id, caller=name == "wake")  # which follows the commit of somebody's own transaction

    assert lab.struck(run_id), f"no process came to {name}.{side}"
    matrix.assert_right(run_id)
    assert matrix.happened(run_id) == 1
