"""What the peers' loops share. Standard library alone: it runs in their environment."""

import json
import sys
import time
from collections.abc import Callable

QUESTION = "Add them all."
ANSWER = "Done: all the numbers have been added, one after the other."


def add(a: int, b: int) -> int:
    return a + b


def check(answer: str) -> None:
    if answer != ANSWER:
        raise SystemExit(f"the loop ended with {answer!r}")


def arguments() -> tuple[str, dict[int, int]]:
    """The database's URL, and how many repetitions of each number of turns."""
    url, *pairs = sys.argv[1:]
    return url, {int(turns): int(times) for turns, times in (pair.split(":") for pair in pairs)}


def report(plan: dict[int, int], run: Callable[[int], None]) -> None:
    """Print milliseconds a step, one sample a run, as JSON: {turns: [samples]}; a first run of each is not counted."""
    found = {}
    for turns, times in plan.items():
        run(turns)
        samples = []
        for _ in range(times):
            begun = time.perf_counter()
            run(turns)
            samples.append((time.perf_counter() - begun) * 1000 / (2 * turns - 1))
        found[turns] = samples
    print(json.dumps(found), flush=True)
