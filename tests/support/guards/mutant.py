"""A guard, and what is left of the code without it."""

from __future__ import annotations

from dataclasses import dataclass

RUNTIME = "ravi_django/runtime/"
STORE = RUNTIME + "store/"
UNIT = "tests/unit/runtime/"


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str  # the guard, as it is printed
    file: str  # from the root of the tree
    before: str  # the guard's exact text, once in the file
    after: str  # what stands there without it
    tests: tuple[str, ...]  # files, from the root of the tree
