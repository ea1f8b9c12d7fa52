"""Source adapters: a site's code that polls services without a feed (X, Slack, mailboxes). Also the result and the
error of every poll."""

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
    """Reads a service. Code registers it under a name, and the `location` of a source is that name: a form cannot name
    code to run."""

    async def poll(self, state: dict[str, Any], options: dict[str, Any]) -> Polled:
        """Returns `Polled(items, state=…, next_in_s=…)` with the items that are new since `state`. `state` is what the
        last poll returned, {} at first. `options` are the source's.

        The items are stored before the state. After a crash the poll is repeated with the old state, and items that it
        returns again are recognized by their id. An error is shown on the source, and the poll is retried later: after
        `retry_after` seconds for a SourceError that has it.
        """
        ...


A = TypeVar("A", bound=SourceAdapter)

_adapters: dict[str, SourceAdapter] = {}


def register_source_adapter(name: str, adapter: A) -> A:
    """Register an adapter for sources of the kind `adapter`. A later one of the same name replaces it. Call this where
    agents are registered, so that web processes and workers have the same adapters. Returns the adapter.

    Raises ValueError for an invalid name, and TypeError when the object has no `poll`.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > 100:
        raise ValueError(f"the name of a source adapter must have 1 to 100 characters, not {name!r}")
    if isinstance(adapter, type) or not callable(getattr(adapter, "poll", None)):
        raise TypeError(f"{adapter!r} is not a source adapter: it needs async def poll(self, state, options)")
    _adapters[name] = adapter
    return adapter


def find_source_adapter(name: str) -> SourceAdapter:
    """Raises LookupError, which lists the registered names."""
    try:
        return _adapters[name]
    except KeyError:
        known = ", ".join(sorted(_adapters)) or "none"
        raise LookupError(f"no source adapter is registered as {name!r}; registered: {known}") from None


def check_polled(found: Any) -> Polled:
    """Check what an adapter returned. Raises TypeError or ValueError."""
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
    items: Sequence[Item] = ()  # oldest first; items that were delivered before are recognized by their identity
    etag: str | None = None  # sent with the next poll; None: unchanged
    modified: str | None = None
    wait_s: float = 0.0  # the server's shortest time to the next poll, in seconds; used when it exceeds `every_s`
    location: str = ""  # the source has moved here permanently
    note: str = ""  # shown as the source's error although nothing failed
    state: dict[str, Any] | None = None  # of an adapter: JSON, at most 16 KiB, for the next poll; None: unchanged
    next_in_s: float | None = None  # seconds to the next poll; None: the source's `every_s`
    after: Callable[[], str] | None = None  # called after the delivery is committed, for at most 30 s; returns a note


class SourceError(Exception):
    """A failed poll. The message is shown on the source. The server asks to wait `retry_after` seconds; `gone` disables
    the source."""

    def __init__(self, message: str, *, retry_after: float | None = None, gone: bool = False) -> None:
        self.retry_after = retry_after
        self.gone = gone
        super().__init__(message)


class PollDelayed(SourceError):
    """The poll could not start in time, because earlier ones took too long. Not a failure: it is retried."""
