"""Charts as SVG that the server renders, and how their figures are written.

Positions are in per cent: a chart fills the width of any screen without a script, a style attribute or distortion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import floor, log10

from django.utils.formats import number_format
from django.utils.translation import gettext

from ravi_django.pages.formats import NONE

LEFT, TOP, BOTTOM = 9.0, 8.0, 84.0  # per cent: the plot begins right of the axis' labels and ends above the times
LABELS = 6  # at most so many times below a chart


@dataclass(frozen=True, slots=True)
class Bar:
    kind: str  # the class: what it counts
    x: str  # as y, width and height: per cent
    y: str
    width: str
    height: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Line:
    kind: str
    x1: str
    y1: str
    x2: str
    y2: str


@dataclass(frozen=True, slots=True)
class Point:
    kind: str
    x: str
    y: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Label:
    x: str
    y: str
    text: str
    kind: str = ""


@dataclass(slots=True)
class Chart:
    bars: list[Bar] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    grid: list[str] = field(default_factory=list)  # heights


@dataclass(frozen=True, slots=True)
class Slot:
    """What a chart shows of one hour or day."""

    label: str  # below the chart
    values: Sequence[float | None]  # one of each kind; None: nothing to show
    titles: Sequence[str]
    urls: Sequence[str]


def bars(slots: Sequence[Slot], kinds: Sequence[str], axis: str = "{}") -> Chart:
    """The values of a slot stand on each other. `axis` formats the labels of its scale."""
    top = nice(max((sum(value or 0 for value in slot.values) for slot in slots), default=0))
    chart, step = _frame(slots, top, axis), (100 - LEFT) / max(1, len(slots))
    for index, slot in enumerate(slots):
        below = 0.0
        for kind, value, title, url in zip(kinds, slot.values, slot.titles, slot.urls, strict=True):
            if not value:
                continue
            height = (BOTTOM - TOP) * value / top
            y = BOTTOM - (BOTTOM - TOP) * below / top - height
            x = LEFT + step * (index + 0.12)
            chart.bars.append(Bar(kind, _percent(x), _percent(y), _percent(step * 0.76), _percent(height), title, url))
            below += value
    return chart


def lines(slots: Sequence[Slot], kinds: Sequence[tuple[str, str]], axis: str = "{}") -> Chart:
    """A line for each kind, which is a class and a name; a slot without a value interrupts it."""
    top = nice(max((value for slot in slots for value in slot.values if value is not None), default=0))
    chart, step = _frame(slots, top, axis), (100 - LEFT) / max(1, len(slots))
    for number, (kind, name) in enumerate(kinds):
        before: tuple[str, str] | None = None
        last: tuple[float, float] | None = None
        for index, slot in enumerate(slots):
            if (value := slot.values[number]) is None:
                before = None
                continue
            height = BOTTOM - (BOTTOM - TOP) * value / top
            x, y = _percent(LEFT + step * (index + 0.5)), _percent(height)
            chart.points.append(Point(kind, x, y, slot.titles[number], slot.urls[number]))
            if before is not None:
                chart.lines.append(Line(kind, *before, x, y))
            before, last = (x, y), (LEFT + step * (index + 0.5), height)
        if last is not None:  # the name stands behind the last point where there is room, else above it
            at, height = last
            label = (at + 2, height + 2, "beside") if at < 70 else (100, max(4.0, height - 7), "above")
            chart.labels.append(Label(_percent(label[0]), _percent(label[1]), name, f"{label[2]} {kind}"))
    return chart


def _frame(slots: Sequence[Slot], top: float, axis: str) -> Chart:
    chart, step = Chart(), (100 - LEFT) / max(1, len(slots))
    for share in (0, 0.5, 1):
        y = BOTTOM - (BOTTOM - TOP) * share
        chart.grid.append(_percent(y))
        if axis != "{}" or (top * share).is_integer():  # no halves of a run
            chart.labels.append(Label("0%", _percent(y), axis.format(number(top * share, 0))))
    every = max(1, -(-len(slots) // LABELS))
    for index in range(0, len(slots), every):
        chart.labels.append(Label(_percent(LEFT + step * (index + 0.5)), "97%", slots[index].label, "time"))
    return chart


def nice(value: float) -> float:
    """The next number of the series 1, 2, 5, 10, … that is not below; 1 for nothing."""
    if value <= 0:
        return 1.0
    size = 10.0 ** floor(log10(value))
    return next(step * size for step in (1, 2, 5, 10, 20) if step * size >= value * 0.999999)


def _percent(value: float) -> str:
    return f"{value:.2f}%"


# --------------------------------------------------------------------------------------------------------- figures


def number(value: float, digits: int = 2) -> str:
    """In the reader's form, with at least so many figures that matter: 1,234 or 0.012. 0 digits: as few as it has."""
    if not value:
        return "0"
    places = max(0, (digits or 2) - 1 - floor(log10(abs(value))))
    if not digits and round(value, places) == round(value, max(0, places - 1)):
        places = max(0, places - 1)
    return str(number_format(round(value, places), decimal_pos=places, force_grouping=True, use_l10n=True))


def count(value: int) -> str:
    return str(number_format(value, decimal_pos=0, force_grouping=True, use_l10n=True))


def tokens(value: int) -> str:
    """812, 9,120, 48 k, 9.1 M."""
    for size, unit, least in ((10**9, "G", 10**9), (10**6, "M", 10**6), (1000, "k", 10_000)):
        if value >= least:
            return f"{number(value / size)} {unit}"
    return count(value)


def money(cost: Decimal, unpriced: int = 0) -> str:
    """US dollars with two figures that matter; a dash for nothing or an unknown price, ≥ if a part is unknown."""
    if not cost:
        return NONE
    value = float(cost)
    text = number_format(value, decimal_pos=2, force_grouping=True, use_l10n=True) if value >= 1 else number(value)
    return f"{'≥ ' if unpriced else ''}${text}"


def share(part: int, whole: int) -> str:
    if not whole:
        return NONE
    return gettext("%(number)s %%") % {"number": number_format(100 * part / whole, decimal_pos=1, use_l10n=True)}
