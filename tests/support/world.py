"""The tests' door into ravi_django: every name inside the package that a test reads, calls or replaces.

`world.claim(...)` and `from tests.support.world import Entry` look the name up in `tests/support/verbs.py`.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tests.support import verbs

if TYPE_CHECKING:  # a process that a test starts has no use for pytest
    from pytest import MonkeyPatch


def __getattr__(verb: str) -> Any:
    return getattr(verbs, verb)


def place_of(verb: str) -> tuple[Any, str]:
    """The module and the name in it, for `unittest.mock.patch.object`."""
    return verbs.place_of(verb)


def replace(verb: str, value: Any) -> None:
    """Replace what `verb` stands for, for good: for a process of its own, or to empty what is kept."""
    setattr(*verbs.place_of(verb), value)


def patch(monkeypatch: MonkeyPatch, verb: str, value: Any, *, raising: bool = True) -> None:
    """Replace what `verb` stands for: a definition in each module that imports it, an imported name in its module."""
    module, name = verbs.place_of(verb)
    before = getattr(module, name, None)
    monkeypatch.setattr(module, name, value, raising=raising)
    if isinstance(before, FunctionType | type) and before.__module__ == module.__name__:
        for user in [found for key, found in sys.modules.items() if key.startswith("ravi_django.")]:
            if vars(user).get(name) is before:
                monkeypatch.setattr(user, name, value)


def silence(monkeypatch: MonkeyPatch, *names: str) -> None:
    """Let these functions do nothing: no hint leaves the process."""
    for verb in names:
        patch(monkeypatch, verb, lambda *args, **kwargs: None)
