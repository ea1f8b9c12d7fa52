"""The figures of `make bench-peers` as a table: each system beside ours, a dash where it has no such feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.report import Figure, shown

OURS = "ravi_django"
AHEAD = 0.95  # of ours; a smaller distance is noise


@dataclass(frozen=True, kw_only=True)
class Compared(Figure):
    """A figure of one system. It is better when it is smaller."""

    system: str
    of_ours: float | None = None  # the ratio to our figure of the same name, where it means something

    @property
    def key(self) -> str:
        return f"{self.system}_{self.title}"

    @property
    def title(self) -> str:
        return self.name if self.turns is None else f"{self.name}_{self.turns}"


def rows(figures: Sequence[Compared], systems: Sequence[str]) -> list[list[str]]:
    """A row for each system in each figure. The figures of one name stand together."""
    table = [["figure", "system", "value", "raw commit", "of raw commit", "of ours", "load"]]
    for title, group in groupby(figures, lambda figure: figure.title):
        by_system = {figure.system: figure for figure in group}
        unit = next(iter(by_system.values())).unit
        for system in systems:
            table.append([f"{title}, {unit}", system, *_cells(by_system.get(system))])
    return table


def ahead(figures: Sequence[Compared]) -> list[str]:
    """A line for each figure in which a peer is ahead of ours."""
    lines = [
        f"{figure.system} is ahead in {figure.title}: {shown(figure.value)} {figure.unit}, {figure.of_ours:.2f} of ours"
        for figure in figures
        if figure.of_ours is not None and figure.of_ours < AHEAD
    ]
    return lines or ["no peer is ahead"]


def _cells(figure: Compared | None) -> list[str]:
    if figure is None:
        return ["-"] * 5
    ratio = figure.ratio_to_raw_commit
    raw = ["-", "-"] if ratio is None else [f"{figure.value / ratio:.2f}", f"{ratio:.1f}x"]
    return [
        shown(figure.value),
        *raw,
        "-" if figure.of_ours is None else f"{figure.of_ours:.2f}x",
        f"{figure.load:.1f}",
    ]
