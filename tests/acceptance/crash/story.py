"""What a run of the laboratory has to do, as data: the whole of it stands in the run's input.

The model reads its part from there, and whoever checks the run reads from there what it must have said and done.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.acceptance.crash.wishes import GATED, PEOPLES, RUNS, said, wish_for

EFFECTS = ("idempotent", "at_most_once", "transactional")
CHECKED = "checked"  # at most once, with a check; its argument `known` is whether the check finds out
OUTLIVING = ("late", "late_async", "late_checked", "late_checked_async")  # at most once, and long after their timeout
ROUNDS = "turns"  # the key of a story in the run's input
PLACE = "place"  # instead: of a run in a planned tree
NOT_RUN = "was not run: this worker could not renew its lease in time"  # the result of an at-most-once call
INPUT, OUTPUT = 90, 10  # tokens of every model call


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call. `number` is its own in the whole tree of runs."""

    tool: str
    number: int
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def story(self) -> Story | None:
        """What the child that this step makes has to do."""
        return Story.read(self.arguments["task"]) if "task" in self.arguments else None

    @property
    def wish(self) -> str:
        """What a person says to it, when one is asked."""
        return str(self.arguments.get("wish", ""))

    @property
    def effect(self) -> str | None:
        """What it promises, when it does something to the world; a call that is refused does nothing."""
        if self.tool in GATED:
            return GATED[self.tool] if self.wish in RUNS else None
        if self.tool == CHECKED or self.tool in OUTLIVING:
            return "at_most_once"
        return self.tool if self.tool in EFFECTS else None

    def said(self, not_run: Container[int] = ()) -> str:
        """What the tool returns. `not_run`: the numbers of calls that a worker did not make any more."""
        if self.number in not_run:
            return f"{self.tool} {NOT_RUN}"
        if (child := self.story) is not None:
            return f"{self.tool} {self.number}: {child.answer(not_run)}"
        if self.tool in PEOPLES:
            return said(self.tool, self.number, self.wish)
        return f"{self.tool} {self.number}"


@dataclass(frozen=True, slots=True)
class Story:
    """Turns of the model, each with the tool calls that it asks for at once; then comes the answer."""

    turns: tuple[tuple[Step, ...], ...]

    @classmethod
    def of(cls, *turns: Sequence[Step]) -> Story:
        return cls(tuple(tuple(turn) for turn in turns))

    @classmethod
    def read(cls, text: str) -> Story:
        said = json.loads(text)
        if PLACE in said:
            from tests.acceptance.crash.plan import story_at

            return story_at(*said[PLACE])
        turns = said[ROUNDS]
        return cls(tuple(tuple(Step(*step) for step in turn) for turn in turns))

    @property
    def text(self) -> str:
        turns = [[[step.tool, step.number, step.arguments] for step in turn] for turn in self.turns]
        return json.dumps({ROUNDS: turns})

    def answer(self, not_run: Container[int] = ()) -> str:
        """The run's output, when nothing is lost, doubled or mixed up."""
        return "; ".join([step.said(not_run) for step in self.steps()]) or "nothing to do"

    @property
    def calls(self) -> int:
        """Of the model: each turn's, and the answer's."""
        return len(self.turns) + 1

    @property
    def tokens(self) -> int:
        return self.calls * (INPUT + OUTPUT)

    def steps(self) -> Iterator[Step]:
        for turn in self.turns:
            yield from turn

    def tree(self) -> Iterator[Step]:
        """The steps of the run and of its children."""
        for step in self.steps():
            yield step
            if (child := step.story) is not None:
                yield from child.tree()


def text_of_place(*place: int) -> str:
    """The input of a run in a planned tree: the plan's seed, runs and depth, and the run's number."""
    return json.dumps({PLACE: place})


def place_of(text: str) -> int | None:
    """The number of the run in its tree, when it is planned."""
    place = json.loads(text).get(PLACE)
    return None if place is None else int(place[-1])


class Author:
    """Makes up stories; the same ones for the same seed."""

    def __init__(self, random: Random, tools: Sequence[str]) -> None:
        self._random = random
        self._waits = [tool for tool in tools if tool not in EFFECTS]
        self._number = 0

    def story(self, depth: int = 0, turns: int | None = None) -> Story:
        turns = turns or self._random.randint(1, 3 if depth else 5)
        return Story.of(*(self._turn(depth) for _ in range(turns)))

    def _turn(self, depth: int) -> list[Step]:
        return [self._step(depth) for _ in range(self._random.choice((1, 1, 1, 2, 3)))]

    def _step(self, depth: int) -> Step:
        self._number += 1
        number = self._number
        waits = [tool for tool in self._waits if depth < 2 or tool not in ("delegate", "hire")]
        if not waits or self._random.random() < 0.65:
            return Step(self._random.choice(EFFECTS), number)
        tool = self._random.choice(waits)
        match tool:
            case "nap":
                return Step(tool, number, {"seconds": round(self._random.uniform(0.05, 1.5), 2)})
            case "delegate" | "hire":
                return Step(tool, number, {"task": self.story(depth + 1).text})
            case _ if tool in PEOPLES:
                return Step(tool, number, {"wish": wish_for(tool, self._random)})
            case _:
                return Step(tool, number)
