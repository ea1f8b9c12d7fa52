"""What the poll of a source comes to: items and when to look again, or an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ravi_django.capabilities.feeds.item import Item


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
