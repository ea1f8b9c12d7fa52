"""A request's own copy of an agent: what it sets on `self` shows in no other request."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

_Any = TypeVar("_Any")


def own_copy(agent: _Any, *, shared: Collection[str] = (), base: type = object) -> _Any:
    """A copy of the object with copies of its lists, dicts, sets and the like, to the bottom; those of its classes
    below `base` become its own too. Other values, and the attributes named in `shared`, are the same objects."""
    mine = copy.copy(agent)
    known: dict[int, Any] = {}
    for name, value in [*_of_classes(type(agent), base), *vars(agent).items()]:
        if name not in shared and (own := _fresh(value, known)) is not value:
            mine.__dict__[name] = own
    return mine


def _of_classes(cls: type, base: type) -> Iterator[tuple[str, Any]]:
    for one in reversed(cls.__mro__[: cls.__mro__.index(base)]):
        yield from ((name, value) for name, value in vars(one).items() if not name.startswith("__"))


def _fresh(value: Any, known: dict[int, Any]) -> Any:
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, (list, dict, set, deque, bytearray)):
        mine: Any = copy.copy(value)  # a copy of its kind: with a deque's length, a defaultdict's factory
        known[id(value)] = mine
        if isinstance(value, dict):
            for key, one in list(dict.items(value)):
                dict.__setitem__(mine, key, _fresh(one, known))
        elif isinstance(value, (list, deque)):
            for place, one in enumerate(list(value)):
                mine[place] = _fresh(one, known)
        return mine
    if type(value) is tuple:
        parts = tuple(_fresh(one, known) for one in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    return value
