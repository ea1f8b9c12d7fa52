"""What has to be true of a tree's stream, as somebody gets it who asks for it from the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def of_stream(frames: list[dict[str, Any]]) -> Iterator[str]:
    """Numbers without a hole that no `stream.gap` has announced, and one end, which comes last."""
    following = 1
    for frame in frames:
        is_gap = frame["type"] == "stream.gap"
        first = frame["from"] if is_gap else frame.get("from_seq", frame["seq"])
        if first > following or (first < following and not is_gap):
            yield f"its stream goes on at {first} where {following} comes next ({frame['type']})"
        if is_gap and frame["to"] + 1 != frame["seq"]:
            yield f"its gap to {frame['to']} ends in front of {frame['seq']}"
        following = frame["seq"] + 1
    ends = [frame["seq"] for frame in frames if frame["type"] == "stream.done"]
    if ends != [following - 1]:
        yield f"its stream ends at {ends}, its last frame is {following - 1}"
