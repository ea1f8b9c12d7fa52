"""Raised inside the transaction of a write that the rows refuse; the caller decides again."""

from __future__ import annotations

from datetime import datetime


class NotDue(Exception):
    """The ask is not to time out (yet): `until` is its new deadline, None when it has an outcome by now."""

    def __init__(self, until: datetime | None) -> None:
        self.until = until
        super().__init__()


class NotStanding(Exception):
    """The decision was revoked, or replaced, since it was found."""


class TooManyRequests(Exception):
    """The run has made as many requests of this kind, through this tool, as it may."""
