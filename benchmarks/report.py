"""What a benchmark gives: figures, shown as a table, a JSON file and one closing line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    name: str  # what was measured; docs/internals/benchmarks.md says how
    turns: int | None  # model calls of a run, where the figure depends on it
    value: float
    unit: str
    ratio_to_raw_commit: float | None = None  # beside the raw commit measured in the same seconds
    load: float = field(default_factory=lambda: os.getloadavg()[0])  # of the machine, over the minute before

    @property
    def key(self) -> str:
        return self.name if self.turns is None else f"{self.name}_{self.turns}"


def shown(value: float) -> str:
    """Three digits that count, none of them behind whole numbers of a thousand and more."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned first column, the others right; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


LINE = "{:<44} {:>5}  {:>8}  {:<11}  {:>13}  {:>5}"
HEAD = LINE.format("figure", "turns", "value", "unit", "of raw commit", "load")


def line(figure: Figure) -> str:
    """A figure below HEAD."""
    ratio = "" if figure.ratio_to_raw_commit is None else f"{figure.ratio_to_raw_commit:.2f}x"
    turns = "" if figure.turns is None else figure.turns
    return LINE.format(figure.name, turns, shown(figure.value), figure.unit, ratio, f"{figure.load:.1f}")


def write(figures: Iterable[Figure], path: Path) -> None:
    path.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")


def closing_line(name: str, figures: Iterable[Figure]) -> str:
    return f"{name}: " + " ".join(f"{figure.key}={shown(figure.value)}" for figure in figures)
