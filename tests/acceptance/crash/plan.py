"""A tree of runs, planned: its shape and what each of its runs does follow from four numbers that all of them are told.

A story that held those of its children, and they those of theirs, would double its quotation marks at every level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from tests.acceptance.crash.story import EFFECTS, Step, Story, text_of_place

AGENTS = ("react/lab", "test/lab-code")
WIDEST = 12  # children of one run
URGENT = 0.15  # of the runs
PLACES = 100  # numbers of steps that a run may use


@dataclass(frozen=True, slots=True)
class Plan:
    """`runs` of them, the root counted, the deepest at `depth`; the root is run 0 at depth 0."""

    seed: int
    runs: int
    depth: int

    @property
    def story(self) -> Story:
        return story_at(self.seed, self.runs, self.depth, 0)

    @property
    def agent(self) -> str:
        return agent_of(self, 0)

    @property
    def text(self) -> str:
        """The root's input."""
        return text_of_place(self.seed, self.runs, self.depth, 0)

    @property
    def tokens(self) -> int:
        """What all its model calls use."""
        return sum(story_at(self.seed, self.runs, self.depth, number).tokens for number in range(self.runs))


@lru_cache(maxsize=64)
def parents(plan: Plan) -> tuple[int, ...]:
    """By run: its parent's number, -1 of the root. A line down to the deepest comes first."""
    random = Random(f"shape {plan.seed}")
    found, depths, children = [-1], [0], [0]
    while len(found) < plan.runs:
        number = len(found)
        if number <= plan.depth:
            parent = number - 1
        else:
            parent = random.choice([n for n in range(number) if depths[n] < plan.depth and children[n] < WIDEST])
        found.append(parent)
        depths.append(depths[parent] + 1)
        children[parent] += 1
        children.append(0)
    return tuple(found)


def is_urgent(plan: Plan, number: int) -> bool:
    """Whether the run may have the place of another in a tree that is full."""
    return Random(f"urgent {plan.seed} {number}").random() < URGENT


def agent_of(plan: Plan, number: int) -> str:
    return Random(f"agent {plan.seed} {number}").choice(AGENTS)


@lru_cache(maxsize=8192)
def story_at(seed: int, runs: int, depth: int, number: int) -> Story:
    """What one run of the tree does: effects of its own, and delegations, all of a turn at once."""
    plan, random = Plan(seed, runs, depth), Random(f"story {seed} {number}")
    steps = _steps(plan, number, random)
    turns = [[next(steps)]]
    children = [child for child, parent in enumerate(parents(plan)) if parent == number]
    cut = random.randint(0, len(children)) if random.random() < 0.3 else len(children)
    for some in filter(None, (children[:cut], children[cut:])):
        turn = [_delegation(plan, number, child) for child in some]
        turns.append([*turn, next(steps)] if random.random() < 0.5 else turn)
    if random.random() < 0.4:
        turns.append([next(steps), next(steps)])
    return Story.of(*turns)


def _steps(plan: Plan, number: int, random: Random) -> Iterator[Step]:
    for place in range(PLACES // 2):
        yield Step(random.choice(EFFECTS), number * PLACES + place)


def _delegation(plan: Plan, number: int, child: int) -> Step:
    place = sum(parent == number for parent in parents(plan)[:child])
    task = text_of_place(plan.seed, plan.runs, plan.depth, child)
    asked = {"task": task, "to": agent_of(plan, child), "urgent": is_urgent(plan, child)}
    return Step("delegate", number * PLACES + PLACES // 2 + place, asked)
