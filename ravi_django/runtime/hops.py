"""How many publications led to one another, as a message's metadata says it. `follow.MAX_HOPS` is the end of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ravi_django.kernel import Message

HOPS = "hops"  # in the metadata of what was published: how many there were, this one included
_MESSAGES = "messages"


def hops_of(messages: Iterable[Message]) -> int:
    """The publications behind these messages: those behind the one that has most."""
    return max((hops_in(message.metadata) for message in messages), default=0)


def hops_in(note: Any) -> int:
    """As the metadata of a message says it."""
    said = note.get(HOPS) if isinstance(note, Mapping) else None
    return max(0, said) if isinstance(said, int) and not isinstance(said, bool) else 0


def hops_told(payload: Any) -> int:
    """As the payload of a signal says it, where that tells of a publication: others may have hops of their own."""
    return hops_in(payload) if isinstance(payload, Mapping) and "publication" in payload else 0


def noted(hops: int) -> dict[str, int]:
    return {HOPS: hops} if hops else {}


def trail_of(hops: int, messages: int) -> dict[str, int]:
    """For the row that a generation begins behind: the publications behind what the code was given last, and how many
    messages it is given again, or for the first time by this run itself."""
    return {HOPS: hops, _MESSAGES: messages} if hops else {}


def hops_at_start(batch: Sequence[Message], trail: Any) -> int:
    """Of a generation that begins with these messages. Beginning anew is no new beginning; what has come since is."""
    before, own = hops_in(trail), hops_in({HOPS: trail.get(_MESSAGES)}) if isinstance(trail, Mapping) else 0
    return hops_of(batch) if len(batch) > own else max(before, hops_of(batch))
