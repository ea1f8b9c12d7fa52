"""The tables of `make mutants` fit the code, and it says which guards survive. (A run of it takes minutes.)"""

import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.mutants import chosen, judge_group
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
    named = re.findall(r"`(tests/[\w/]+\.py::\w+)`", (ROOT / "docs/testing.md").read_text())

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


TEXT = """# About leases.
files tests/unit/test_*.py

claims.claim: only an expired lease
- if expired:
-     return True
+ if True:
+     return True
= tests/a.py::test_a

claims.claim: once: of two
- FOR UPDATE
= tests/a.py::test_a[1]
"""


def test_a_table_is_read_and_another_killer_is_written_into_it(tmp_path):
    (tmp_path / "leases.txt").write_text(TEXT)

    first, second = guards.load(tmp_path)

    assert (first.symbol, first.promise) == ("claims.claim", "only an expired lease")
    assert (first.before, first.after) == ("if expired:\n    return True", "if True:\n    return True")
    assert (second.promise, second.after, second.killer) == ("once: of two", "", "tests/a.py::test_a[1]")
    assert second.files == ("tests/unit/test_*.py",)

    guards.record(second, "tests/b.py::test_b", tmp_path)

    assert (tmp_path / "leases.txt").read_text() == TEXT.replace("tests/a.py::test_a[1]", "tests/b.py::test_b")


@pytest.mark.parametrize("text", ["no.colon", "a.b: no text\n= t", "a.b: no killer\n- x", "a.b: odd\n- x\n* y\n= t"])
def test_an_entry_that_lacks_a_part_is_refused(text):
    with pytest.raises(ValueError, match=r"group\.txt"):
        list(guards.parse("group", f"# About.\n\n{text}\n"))


@pytest.mark.parametrize(
    ("parts", "promises"), [([], "abc"), (["leases"], "ab"), (["b"], "b"), (["slots.x", "b"], "bc"), (["nothing"], "")]
)
def test_a_part_names_a_group_or_is_in_a_symbol_or_promise(parts, promises):
    table = [
        replace(GUARD, group=group, symbol=symbol, promise=promise)
        for group, symbol, promise in (("leases", "x.y", "a"), ("leases", "x.y", "b"), ("trees", "slots.x", "c"))
    ]

    assert "".join(guard.promise for guard in chosen(table, parts)) == promises


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
