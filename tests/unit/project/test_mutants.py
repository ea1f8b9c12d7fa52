"""The tables of `make mutants` fit the code, and it says which guards survive. (A run of it takes minutes.)"""

import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.mutants import judge_group
from tests.support import guards
from tests.support.guards import ROOT
from tests.support.mutation_bench import NOTHING_RAN, Outcome

TABLE = guards.load()
GUARD = replace(TABLE[0], files=())
FILE = "tests/unit/project/test_mutants.py"
KILLER, OTHER = f"{FILE}::test_killer", f"{FILE}::test_other"


def test_each_guard_stands_once_in_its_symbol_and_its_killer_is_there():
    wrong = [found for guard in TABLE if (found := guards.misfit(guard))]
    wrong += [f"{name}: stands twice" for name, count in Counter(map(str, TABLE)).items() if count > 1]
    wrong += [
        f"{group}.txt: {pattern} fits no file"
        for group, pattern in sorted({(guard.group, pattern) for guard in TABLE for pattern in guard.files})
        if not any(ROOT.glob(pattern))
    ]

    assert not wrong, "\n".join(wrong)


def test_each_promise_of_the_docs_names_tests_that_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py::\w+)`", (ROOT / "docs/internals/tests.md").read_text())

    assert len(named) > 25 and [test for test in named if not guards.is_test(test, ROOT)] == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"symbol": "gone.symbol"}, "it names nothing"),
        ({"symbol": "__init__"}, "must name one definition"),
        ({"before": "this text is nowhere"}, "it stands 0 times"),
        ({"before": "e"}, "must stand once"),
        ({"after": GUARD.before}, "is the same as"),
        ({"after": "'" * 3}, "is no Python"),
        ({"killer": "tests/unit/test_gone.py::test_gone"}, "there is no"),
        ({"killer": KILLER}, "If the test was renamed"),
    ],
)
def test_one_that_does_not_fit_is_named(change, complaint):
    guard = replace(GUARD, **change)

    found = guards.misfit(guard)

    assert found is not None
    assert found.startswith(str(guard))
    assert complaint in found


class FakeBench:
    """Tests whose ends are given: with the guard in its place, and without it. None is a run that breaks off."""

    tree = ROOT

    def __init__(self, whole, without):
        self._whole, self._without = whole, without
        self._ends = whole

    @contextmanager
    def without(self, guard):
        self._ends = self._without
        yield
        self._ends = self._whole

    def run(self, tests, *, first=False):
        if self._ends is None:
            return Outcome([], [], 2, "no such module")
        names = {test: {test, test.partition("[")[0], test.partition("::")[0]} for test in self._ends}
        ran = {test: good for test, good in self._ends.items() if names[test] & set(tests)}
        passed, failed = ([test for test, good in ran.items() if good is wanted] for wanted in (True, False))
        return Outcome(passed, failed, 1 if failed else 0 if passed else NOTHING_RAN, "")


class FakeTally:
    verdict = ""

    def kill(self, guard, killer, seconds):
        self.verdict = f"killed by {killer}"

    def survive(self, guard, words):
        self.verdict = words


@pytest.mark.parametrize(
    ("searches", "whole", "without", "verdict"),
    [
        (False, {KILLER: True}, {KILLER: False}, f"killed by {KILLER}"),
        (False, {f"{KILLER}[1]": True}, {f"{KILLER}[1]": False}, f"killed by {KILLER}"),
        (False, {KILLER: True, OTHER: True}, {KILLER: True, OTHER: False}, f"{KILLER} passed without it"),
        (False, {OTHER: True}, {OTHER: False}, f"there is no {KILLER}"),
        (False, {KILLER: False}, {KILLER: False}, "fails with every guard in its place"),
        (False, {KILLER: True}, None, "did not run to an end"),
        (False, None, None, "every guard in its place"),
        (True, {KILLER: True, OTHER: True}, {KILLER: True, OTHER: False}, f"killed by {OTHER}"),
        (True, {f"{OTHER}[1]": True}, {f"{OTHER}[1]": False}, f"killed by {OTHER}"),
        (True, {KILLER: True, OTHER: True}, {KILLER: True, OTHER: True}, "passed without it"),
        (True, {KILLER: True, OTHER: False}, {KILLER: True, OTHER: False}, "with the guard in its place as well"),
    ],
)
def test_a_guard_is_killed_by_what_fails_without_it_and_passes_with_it(searches, whole, without, verdict):
    tally = FakeTally()

    judge_group(FakeBench(whole, without), [replace(GUARD, killer=KILLER)], tally, searches=searches)

    assert verdict in tally.verdict
