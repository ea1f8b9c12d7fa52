"""A site's own code that reads what has no open feed (X, Slack, mailboxes), and what any poll returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic_core import to_json

from ravi_django.capabilities.feeds.item import Item

MOST = 1_000  # items of one poll
STATE_BYTES = 16 * 1024


@runtime_checkable
class SourceAdapter(Protocol):
    """Reads a service. It is registered under a name in code, and the `location` of a source is that name: what is
    typed into a form never names code to run."""

    async def poll(self, state: dict[str, Any], options: dict[str, Any]) -> Polled:
        """`Polled(items, state=…, next_in_s=…)`: what is new since `state`, which is what the last poll returned, {}
        at first. `options` are the source's.

        The items are recorded before the state is: after a crash a poll is repeated with the state of before, and
        what it brings again is known by its id. An error is shown at the source, and the poll made again later, after
        `retry_after` seconds when it is a SourceError that says so.
        """
        ...


A = TypeVar("A", bound=SourceAdapter)

_adapters: dict[str, SourceAdapter] = {}


def register_source_adapter(name: str, adapter: A) -> A:
    """Make an adapter known by name to sources of the kind `adapter`; a later one replaces an earlier. Call it where
    agents are registered, so that web processes and workers know the same. Returns the adapter.

    Raises TypeError or ValueError for what is none.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > 100:
        raise ValueError(f"the name of a source adapter has 1 to 100 characters, not {name!r}")
    if isinstance(adapter, type) or not callable(getattr(adapter, "poll", None)):
        raise TypeError(f"{adapter!r} is no source adapter: an object with async def poll(self, state, options)")
    _adapters[name] = adapter
    return adapter


def find_source_adapter(name: str) -> SourceAdapter:
    """Raises LookupError, which names those that there are."""
    try:
        return _adapters[name]
    except KeyError:
        known = ", ".join(sorted(_adapters)) or "none"
        raise LookupError(f"no source adapter is registered as {name!r}; there are: {known}") from None


def source_adapters() -> list[str]:
    return sorted(_adapters)


def check_polled(found: Any) -> Polled:
    """Raises TypeError or ValueError when an adapter returned something else, or too much."""
    if not isinstance(found, Polled):
        raise TypeError(f"poll must return Polled(items, state), not {found!r:.100}")
    if not all(isinstance(item, Item) for item in found.items):
        raise TypeError("Polled.items must be a list of Item")
    if len(found.items) > MOST:
        raise ValueError(f"{len(found.items)} items in one poll, the limit is {MOST}")
    if not isinstance(found.state, dict | None):
        raise TypeError(f"Polled.state must be a dict, not {found.state!r:.100}")
    if found.state is not None and (size := len(to_json(found.state))) > STATE_BYTES:
        raise ValueError(f"Polled.state has {size} bytes as JSON, the limit is {STATE_BYTES}")
    if found.next_in_s is not None and not 0 < found.next_in_s < float("inf"):
        raise ValueError(f"Polled.next_in_s must be seconds above 0, not {found.next_in_s!r}")
    return found


@dataclass(frozen=True, slots=True)
class Polled:
    items: Sequence[Item] = ()  # oldest first; those that were told before are known by their identity
    etag: str | None = None  # what the next poll is given back; None: as it was
    modified: str | None = None
    wait_s: float = 0.0  # seconds that the other side asks to be left alone, when that is more than the source's own
    location: str = ""  # the source has moved here for good
    note: str = ""  # shown as the source's error though nothing failed
    state: dict[str, Any] | None = None  # of an adapter: JSON, at most 16 KiB, given to the next poll; None: as it was
    next_in_s: float | None = None  # seconds to the next poll; None: the source's own `every_s`
    after: Callable[[], str] | None = None  # called when the items were told and that is committed, for 30 s; a note


class SourceError(Exception):
    """A poll that brought nothing; the message says why, and is shown. `retry_after` seconds are the other side's wish;
    `gone` switches the source off."""

    def __init__(self, message: str, *, retry_after: float | None = None, gone: bool = False) -> None:
        self.retry_after = retry_after
        self.gone = gone
        super().__init__(message)


class NotItsTurn(SourceError):
    """Nobody was asked: the server was still at what others had asked it. The poll is for later, and no failure."""
