"""Ended trees: their sequence is kept, its tokens collapsed, in one compressed blob each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ravi_django.models import Blob
from ravi_django.runtime.buffer import EventBuffer
from ravi_django.runtime.entries import make_blob
from ravi_django.runtime.events import archived
from ravi_django.runtime.frames import collapse
from ravi_django.runtime.store import streams

PAGE = 5000  # frames read at a time
MOST = 50  # trees in one transaction


def archive(buffer: EventBuffer, ended: Mapping[str, int]) -> None:
    """Keep what the buffer has of these trees, by id the epoch that they ended under; mark them published, and let the
    buffer go of them before long."""
    trees = list(ended)
    for start in range(0, len(trees), MOST):
        some = {tree: ended[tree] for tree in trees[start : start + MOST]}
        buffer.expire(streams.mark_many_published(_archives(buffer, some)))


def _archives(buffer: EventBuffer, ended: Mapping[str, int]) -> dict[str, tuple[Blob | None, int]]:
    """By tree its archive and its epoch. Not of one whose end the buffer has lost: the sweep publishes it again."""
    from ravi_django.runtime.buffer_database import DatabaseBuffer

    if isinstance(buffer, DatabaseBuffer):  # its table is the archive
        return {tree: (None, epoch) for tree, epoch in ended.items()}
    found: dict[str, tuple[Blob | None, int]] = {}
    for (tree, epoch), page in zip(ended.items(), buffer.read_many(list(ended), PAGE), strict=True):
        frames = _rest(buffer, tree, page)
        if any(frame["type"] == "stream.done" and frame["attempt"] == str(epoch) for frame in reversed(frames)):
            found[tree] = (_blob(frames), epoch)
    return found


def _rest(buffer: EventBuffer, tree: str, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    page: list[dict[str, Any]] | None = frames
    while page and len(page) == PAGE:
        page = buffer.read(tree, frames[-1]["seq"], PAGE)
        frames += page or []
    if frames and frames[0]["seq"] > 1:  # the buffer has lost what came before a retry
        frames = [*(frame for frame in archived(tree) if frame["seq"] < frames[0]["seq"]), *frames]
    return frames


def _blob(frames: list[dict[str, Any]]) -> Blob:
    return make_blob(to_json(collapse(frames)), compress=True)
