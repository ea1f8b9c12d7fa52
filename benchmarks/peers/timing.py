"""The part that all peers share. It uses the standard library alone, because it runs in the peers' environment.

A peer is a process that reads one command a line from stdin and answers it with one number: `step TURNS`, `wake`,
`hold` and `resumed`.
"""

import os
import queue
import random
import sys
import time
from collections.abc import Callable

QUESTION = "Add them all."
ANSWER = "Done: all the numbers have been added, one after the other."
HOLD_S = 600.0
ROLE = os.environ.get("BENCH_ROLE", "steady")  # "doomed": the process is killed in the middle of the step that holds

_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # a library that prints must not answer a command
_marks: "queue.Queue[float]" = queue.Queue()


def add(a: int, b: int) -> int:
    return a + b


def call_model(messages: list, turns: int) -> dict:
    """The next message of a loop that is written by hand."""
    done = sum(message["role"] == "assistant" for message in messages)
    if done + 1 == turns:
        return {"role": "assistant", "content": ANSWER}
    call = {"id": f"call_{done}", "name": "add", "arguments": {"a": 1, "b": done}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def check(answer: str) -> None:
    if answer != ANSWER:
        raise SystemExit(f"the loop ended with {answer!r}")


def arguments() -> tuple[str, int]:
    """The database's URL, and the seconds after which another worker may take over a silent worker's run."""
    return sys.argv[1], int(sys.argv[2])


def serve(run: Callable[[int], None], **commands: Callable[[], float]) -> None:
    """Answer commands until stdin ends. `run` makes one run of so many turns."""
    print("ready", file=_answers, flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        answer = _step(run, int(numbers[0])) if command == "step" else commands[command]()
        print(answer, file=_answers, flush=True)


def _step(run: Callable[[int], None], turns: int) -> float:
    """Milliseconds a step."""
    begun = time.perf_counter()
    run(turns)
    return (time.perf_counter() - begun) * 1000 / (2 * turns - 1)


def mark() -> None:
    """The waiting run has continued, or the step that holds has begun."""
    _marks.put(time.time())


def marked() -> float:
    """The time of the next mark; waits for it."""
    return _marks.get(timeout=HOLD_S)


def hold() -> None:
    """The body of the step in whose middle the process is killed."""
    mark()
    if ROLE == "doomed":
        time.sleep(HOLD_S)


def woken_by(send: Callable[[], None]) -> float:
    """Milliseconds from sending the event to the next line of the run, which waits already."""
    time.sleep(random.uniform(0.3, 0.8))  # no fixed distance to the peer's own polling
    begun = time.time()
    send()
    return (marked() - begun) * 1000
