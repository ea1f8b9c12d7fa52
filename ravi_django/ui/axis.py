"""The time axis of a run's timeline. Long stretches in which nothing runs are left out, and marked with their length.

Positions are in per cent, as in `charts.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from ravi_django.pages import formats

Span = tuple[datetime, datetime]

SHARE = 10  # a stretch of more than a tenth of the work is left out
LEAST = timedelta(seconds=2)  # shorter ones never are
WIDTH, ALL = 3.0, 30.0  # per cent: of one stretch that is left out, and of all of them at most
TICKS = 5
STEPS = tuple(timedelta(seconds=factor * 10**power) for power in range(-3, 9) for factor in (1, 2, 5))
APART = 15.0  # per cent between two labels


@dataclass(frozen=True, slots=True)
class Mark:
    x: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Piece:
    begin: datetime
    end: datetime
    left: float  # per cent, as width
    width: float
    is_left_out: bool


class Axis:
    """From the first to the last of `spans`, in which something of the tree runs."""

    def __init__(self, spans: Iterable[Span], begin: datetime, end: datetime, *, is_whole: bool = False) -> None:
        busy = union([*spans, (begin, begin), (end, end)])
        self.begin, self.end = busy[0][0], busy[-1][1]
        self.work = sum((till - since for since, till in busy), timedelta())
        gaps = [(before[1], after[0]) for before, after in pairwise(busy)]
        least = max(self.work / SHARE, LEAST)
        self._pieces = self._pieces_of([] if is_whole else [gap for gap in gaps if gap[1] - gap[0] > least])
        self._begins = [piece.begin for piece in self._pieces]
        left_out = [piece for piece in self._pieces if piece.is_left_out]
        self.folds = [
            Mark(percent(piece.left + piece.width / 2), f"+{formats.duration(piece.end - piece.begin)}")
            for piece in left_out
        ]

    @property
    def total(self) -> timedelta:
        return self.end - self.begin

    def x(self, at: datetime) -> float:
        piece = self._pieces[max(0, bisect_right(self._begins, at) - 1)]
        span = piece.end - piece.begin
        part = min(1.0, max(0.0, (at - piece.begin) / span)) if span else 0.0
        return piece.left + part * piece.width

    def ticks(self) -> list[Mark]:
        """Labels: the time since the beginning, and the length of each stretch that is left out."""
        drawn = sum((piece.end - piece.begin for piece in self._pieces if not piece.is_left_out), timedelta())
        step = next((step for step in STEPS if drawn / TICKS <= step), STEPS[-1])
        labels = [(float(fold.x.rstrip("%")), fold.text) for fold in self.folds]
        for piece in self._pieces:
            at = -(-(piece.begin - self.begin) // step) * step  # the first whole step in it
            while not piece.is_left_out and at < piece.end - self.begin:
                labels.append((self.x(self.begin + at), formats.duration(at) if at else "0 s"))
                at += step
        fitting: list[tuple[float, str]] = []
        for x, text in sorted(labels, key=lambda mark: (not mark[1].startswith("+"), mark[0])):
            # "1 d 2 h" is the label of a whole hour
            is_new = all(abs(x - other) >= APART and text != label for other, label in fitting)
            if x < 100 - APART / 2 and is_new:
                fitting.append((x, text))
        return [Mark(percent(x), text) for x, text in sorted(fitting)]

    def _pieces_of(self, left_out: list[Span]) -> list[_Piece]:
        edges = [self.begin, *(edge for gap in left_out for edge in gap), self.end]
        spans = list(pairwise(edges))
        narrow = min(WIDTH, ALL / len(left_out)) if left_out else 0.0
        drawn = sum((end - begin for begin, end in spans[::2]), timedelta())
        pieces, left = [], 0.0
        for number, (begin, end) in enumerate(spans):
            is_left_out = number % 2 == 1
            rest = 100 - narrow * len(left_out)
            width = narrow if is_left_out else rest * ((end - begin) / drawn if drawn else 1 / len(spans[::2]))
            pieces.append(_Piece(begin, end, left, width, is_left_out))
            left += width
        return pieces


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time, in order and without overlaps."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, max(begin, end)))
    return merged


def percent(value: float) -> str:
    return f"{value:.2f}%"
