"""`make mutants` takes minutes; that its table still fits the code is looked at here, with every run of the tests."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import misfit
from tests.support.guards import MUTANTS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_guard_is_found_exactly_once_and_its_tests_are_there(mutant):
    assert misfit(mutant, ROOT) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_is_left_without_the_guard_is_python(mutant):
    text = (ROOT / mutant.file).read_text().replace(mutant.before, mutant.after)

    ast.parse(text)


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
