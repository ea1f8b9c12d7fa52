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
HANDS_OVER = "hand_over"  # the last call of a story: another agent goes on with the run
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

    @property
    def heir(self) -> Story | None:
        """What the agent does that takes the run over at its end."""
        last = self.turns[-1][-1] if self.turns else None
        return last.story if last is not None and last.tool == HANDS_OVER else None

    def answer(self, not_run: Container[int] = ()) -> str:
        """The run's output, when nothing is lost, doubled or mixed up."""
        if self.heir is not None:
            return self.heir.answer(not_run)
        return "; ".join([step.said(not_run) for step in self.steps()]) or "nothing to do"

    @property
    def calls(self) -> int:
        """Of the models: each turn's, and the answer's."""
        return len(self.turns) + (1 if self.heir is None else self.heir.calls)

    @property
    def tokens(self) -> int:
        return self.calls * (INPUT + OUTPUT)

    def steps(self) -> Iterator[Step]:
        """Of the run: also those of the agent that takes it over."""
        for turn in self.all_turns():
            yield from (step for step in turn if step.tool != HANDS_OVER)

    def all_turns(self) -> tuple[tuple[Step, ...], ...]:
        return self.turns if self.heir is None else self.turns + self.heir.all_turns()

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
        self._waits = [tool for tool in tools if tool not in (*EFFECTS, HANDS_OVER)]
        self._hands_over = HANDS_OVER in tools
        self._number = 0

    def story(self, depth: int = 0, turns: int | None = None, *, to_heir: bool = False) -> Story:
        """`to_heir`: of the agent that takes over; it hands nothing over itself."""
        turns = turns or self._random.randint(1, 3 if depth else 5)
        played: list[list[Step]] = [self._turn(depth) for _ in range(turns)]
        if self._hands_over and not (depth or to_heir) and self._random.random() < 0.4:
            played.append([self._with_task(HANDS_OVER, self.story(1, self._random.randint(1, 2), to_heir=True))])
        return Story.of(*played)

    def _with_task(self, tool: str, story: Story) -> Step:
        self._number += 1
        return Step(tool, self._number, {"task": story.text})

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
