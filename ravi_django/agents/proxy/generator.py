"""Drive an agent's generator, async or plain: do what it yields, and send the value back.

Each request has its own copy of the agent: what it sets on `self` shows in no other request.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterator
from contextlib import suppress
from typing import Any, TypeVar


class Ended(Exception):
    """The generator has come to its end."""


class Steps:
    """One pass through a generator. `perform` does what was yielded; `Steps` is over when it raises `Ended`.

    An exception of `perform` is raised at the yield: the generator may catch it and go on. What ends the lease
    (a suspension, the task's cancellation) goes through the generator as through any code that awaits, and on.
    """

    def __init__(self, made: Any, name: str) -> None:
        self._name = name
        if inspect.isasyncgen(made):
            self._generator: AsyncGenerator[Any, Any] | _Plain = made
        elif inspect.isgenerator(made):
            self._generator = _Plain(made)
        else:
            if inspect.iscoroutine(made):
                made.close()
            raise TypeError(f"{name} is no generator, it gave {made!r:.200}; yield events, at least one TurnEnd")

    async def run(self, perform: Callable[[Any], Awaitable[Any]]) -> None:
        """To the generator's end, or to what `perform` raises Ended for. It is closed then."""
        try:
            event = await self._generator.__anext__()
            while True:
                try:
                    value = await perform(event)
                except Ended:
                    return
                except Exception as error:
                    event = await self._generator.athrow(error)
                except BaseException as stop:
                    with suppress(StopAsyncIteration):  # swallowed by the generator: it stops all the same
                        await self._generator.athrow(stop)
                    raise
                else:
                    event = await self._generator.asend(value)
        except StopAsyncIteration:
            return
        finally:
            await self.close()

    async def close(self) -> None:
        """Run its `finally` blocks. Raises TypeError when one of them yields."""
        try:
            await self._generator.aclose()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise
            raise TypeError(f"{self._name} yields after its turn has ended; a finally block may not yield") from error


class _Plain:
    """A plain generator in the async one's clothes."""

    def __init__(self, generator: Generator[Any, Any, Any]) -> None:
        self._generator = generator

    async def __anext__(self) -> Any:
        return await self.asend(None)

    async def asend(self, value: Any) -> Any:
        return self._step(lambda: self._generator.send(value))

    async def athrow(self, error: BaseException) -> Any:
        return self._step(lambda: self._generator.throw(error))

    async def aclose(self) -> None:
        self._generator.close()

    @staticmethod
    def _step(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except StopIteration:
            raise StopAsyncIteration from None


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
