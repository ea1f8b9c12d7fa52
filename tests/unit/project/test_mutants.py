"""`make mutants` takes minutes; that its table still fits the code is looked at here, with every run of the tests."""

from __future__ import annotations

import ast
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import NOTHING_RAN, chosen, judge_group, misfit
from tests.support.guards import MUTANTS
from tests.support.mutation_bench import Outcome

ROOT = Path(__file__).resolve().parents[3]


def test_each_guard_is_found_exactly_once_and_its_tests_are_there():
    assert [found for mutant in MUTANTS if (found := misfit(mutant, ROOT))] == []


def test_what_is_left_without_a_guard_is_python():
    assert [mutant.name for mutant in MUTANTS if not is_python(mutant)] == []


def is_python(mutant):
    try:
        ast.parse((ROOT / mutant.file).read_text().replace(mutant.before, mutant.after))
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["fence"]),
        (["--all"], ["lease", "fence", "fence late"]),
        (["late", "lease"], ["lease", "fence late"]),
        (["nothing"], []),
    ],
)
def test_guards_with_a_killer_run_unless_others_are_named(arguments, names, monkeypatch):
    table = [replace(MUTANTS[0], name=name) for name in ("lease", "fence", "fence late")]
    monkeypatch.setattr("tests.mutants.MUTANTS", table)

    assert [mutant.name for mutant in chosen(arguments, {"fence": "a test", "gone": "a test"})] == names


def test_each_has_a_name_of_its_own():
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"before": "this text is nowhere"}, "is not in"),
        ({"before": "lease"}, "times in"),
        ({"file": "ravi_django/gone.py"}, "there is no"),
        ({"tests": ("tests/unit/test_gone.py",)}, "there is no"),
        ({"after": MUTANTS[0].before}, "changes nothing"),
    ],
)
def test_one_that_does_not_fit_is_named(change, complaint):
    fields = {name: getattr(MUTANTS[0], name) for name in ("name", "file", "before", "after", "tests")}

    found = misfit(type(MUTANTS[0])(**{**fields, **change}), ROOT)

    assert found is not None
    assert found.startswith(MUTANTS[0].name)
    assert complaint in found


MUTANT = MUTANTS[0]
KILLER, OTHER = f"{MUTANT.tests[0]}::test_killer", f"{MUTANT.tests[0]}::test_other"


class FakeBench:
    """Tests whose ends are given: with the guard in its place, and without it. None is a run that breaks off."""

    tree = ROOT

    def __init__(self, whole, without):
        self._whole, self._without = whole, without
        self._ends = whole

    @contextmanager
    def without(self, mutant):
        self._ends = self._without
        yield
        self._ends = self._whole

    def run(self, tests, *, first=False):
        if self._ends is None:
            return Outcome([], [], 2, "no such module")
        ran = {test: good for test, good in self._ends.items() if test in tests or test.partition("::")[0] in tests}
        passed, failed = ([test for test, good in ran.items() if good is wanted] for wanted in (True, False))
        return Outcome(passed, failed, 1 if failed else 0 if passed else NOTHING_RAN, "")


class FakeTally:
    def __init__(self, killers):
        self.killers = killers
        self.verdict = None

    def kill(self, mutant, killer, seconds):
        self.verdict = f"killed by {killer}"

    def survive(self, mutant, words):
        self.verdict = words


@pytest.mark.parametrize(
    ("whole", "without", "verdict"),
    [
        ({KILLER: True}, {KILLER: False}, f"killed by {KILLER}"),
        ({KILLER: True, OTHER: True}, {KILLER: True, OTHER: False}, f"killed by {OTHER}"),
        ({OTHER: True}, {OTHER: False}, f"killed by {OTHER}"),
        ({KILLER: True, OTHER: True}, {KILLER: True, OTHER: True}, "passed without it"),
        ({KILLER: False}, {KILLER: False}, "fails with every guard in its place"),
        ({KILLER: True, OTHER: False}, {KILLER: True, OTHER: False}, "fails with the guard in its place as well"),
        ({KILLER: True}, None, "did not run to an end"),
        (None, None, "every guard in its place"),
    ],
    ids=["killer", "another", "killer gone", "survivor", "always fails", "other always fails", "breaks", "broken"],
)
def test_a_mutant_is_killed_by_what_fails_without_the_guard_and_passes_with_it(whole, without, verdict):
    tally = FakeTally({MUTANT.name: KILLER})

    judge_group(FakeBench(whole, without), [MUTANT], tally)

    assert verdict in tally.verdict
