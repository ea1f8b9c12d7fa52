"""`make bench`: what the project costs, on the real stack, beside what its database costs.

    python -m benchmarks.run            everything, a few minutes
    python -m benchmarks.run --quick    the same with few repetitions, to see that it works
    python -m benchmarks.run --only steps,storage

docs/internals/benchmarks.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks import report, stack
from benchmarks.report import Figure
from benchmarks.stack import Stack
from project.process import ProcessError

OUT = Path(__file__).resolve().parent / "out.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    repetitions: dict[int, int]  # turns: runs whose steps are timed
    stored: dict[int, int]  # turns: runs whose bytes are counted
    in_flight: tuple[int, float]  # runs at once; seconds that their model takes
    first_tokens: int  # runs one after another
    wake_ups: int  # signals one after another
    rows: tuple[int, int]  # behind a wait; behind a replay
    suspended: int  # runs that wait beside a sweep
    claimers: tuple[int, ...]  # processes that look for claimable runs at once
    backlog: int  # pending runs beside a recovery, and beside a first token
    conversations: tuple[int, ...]  # turns of those that a prompt begins with
    long_conversation: tuple[int, int]  # runs; calls of each
    delegations: int  # one after another
    fan_out: tuple[int, int]  # children asked in one turn; how often
    tree: tuple[int, int]  # runs; how many trees
    requests: int  # to people, one after another
    followers: tuple[int, int]  # of one topic; how often it is published to
    events: tuple[int, int, int]  # through the bus; one after another; runs with and without one
    feeds: int  # polled by one process
    storm: tuple[int, int, int]  # trees at a limited provider; workers; requests a minute that it takes
    pages: tuple[int, int]  # rows of a journal; runs behind a dashboard
    bill: tuple[int, int, int, int, int]  # requests; of these stopped, cut, left for a fallback, lost with a worker


FULL = Plan(
    repetitions={10: 40, 50: 15, 200: 7, 2_000: 5},
    stored={1: 2_000, 10: 120, 200: 8},
    in_flight=(500, 2.0),
    first_tokens=60,
    wake_ups=60,
    rows=(400, 1000),
    suspended=100_000,
    claimers=(1, 2, 4),
    backlog=1_000,
    conversations=(1_000, 10_000),
    long_conversation=(20, 50),
    delegations=60,
    fan_out=(100, 9),
    tree=(500, 3),
    requests=60,
    followers=(10_000, 5),
    events=(50_000, 200, 30),
    feeds=1_000,
    storm=(200, 4, 1_000),
    pages=(5_000, 1_000_000),
    bill=(2_000, 400, 200, 200, 100),
)
QUICK = Plan(
    repetitions={3: 2, 6: 2},
    stored={1: 3, 6: 3},
    in_flight=(8, 0.2),
    first_tokens=3,
    wake_ups=3,
    rows=(20, 50),
    suspended=500,
    claimers=(2,),
    backlog=20,
    conversations=(200,),
    long_conversation=(2, 5),
    delegations=3,
    fan_out=(5, 2),
    tree=(8, 1),
    requests=3,
    followers=(50, 1),
    events=(1000, 5, 3),
    feeds=60,
    storm=(3, 2, 240),
    pages=(50, 1_000),
    bill=(100, 20, 10, 10, 5),
)


def steps(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import steps
    from benchmarks.raw_commit import RawCommit

    with RawCommit(stack.database_url) as raw:
        return steps.measure(plan.repetitions, raw)


def storage(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import storage

    yield from storage.measure(plan.stored, stack.database_url, detailed=True)
    yield from storage.in_sqlite(plan.stored)


def in_flight(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import in_flight

    return in_flight.measure(stack, *plan.in_flight)


def first_token(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import first_token

    return _beside_raw(stack, first_token.measure(stack, plan.first_tokens, plan.backlog))


def durability(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import durability

    figures = durability.measure(
        stack, samples=plan.wake_ups, rows=plan.rows, many=plan.suspended, pending=plan.backlog
    )
    return _beside_raw(stack, figures)


def claims(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import durability

    return durability.claims(stack, 10 * plan.backlog, plan.claimers)


def windows(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import windows

    return windows.measure(plan.repetitions, plan.conversations)


def long_conversation(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import long_conversation

    return long_conversation.measure(stack, *plan.long_conversation)


def delegation(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import delegation

    return _beside_raw(stack, delegation.measure(stack, plan.delegations))


def fan_out(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import fan_out

    return _beside_raw(stack, fan_out.measure(stack, *plan.fan_out))


def tree(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import tree

    return _beside_raw(stack, tree.measure(stack, *plan.tree))


def people(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import people

    return people.measure(stack, plan.requests)


def events(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import events

    many, samples, runs = plan.events
    return events.measure(stack, turns=10, runs=runs, events=many, samples=samples)


def sources(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import sources

    return sources.measure(stack, plan.feeds)


def pages(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import pages

    return pages.measure(stack, *plan.pages)


def bill(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import bill

    return bill.measure(stack, bill.Size(*plan.bill))


def social(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import social

    return _beside_raw(stack, social.measure(stack, *plan.followers))


def gate(stack: Stack, plan: Plan) -> Iterable[Figure]:
    from benchmarks import gate

    return gate.measure(stack, *plan.storm)


def _beside_raw(stack: Stack, figures: Iterable[Figure]) -> Iterator[Figure]:
    """Milliseconds with their ratio to the raw commit, measured right before them."""
    from benchmarks.raw_commit import RawCommit

    with RawCommit(stack.database_url) as raw:
        commit = median(raw.sample(200))
    for one in figures:
        yield replace(one, ratio_to_raw_commit=one.value / commit) if one.unit == "ms" else one


BENCHMARKS: dict[str, Callable[[Stack, Plan], Iterable[Figure]]] = {
    "steps": steps,
    "storage": storage,
    "windows": windows,
    "long_conversation": long_conversation,
    "in_flight": in_flight,
    "first_token": first_token,
    "durability": durability,
    "claims": claims,
    "delegation": delegation,
    "fan_out": fan_out,
    "tree": tree,
    "people": people,
    "social": social,
    "events": events,
    "sources": sources,
    "gate": gate,
    "pages": pages,
    "bill": bill,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure the project.")
    parser.add_argument("--quick", action="store_true", help="few repetitions: the figures mean little")
    parser.add_argument("--only", type=_names, default=list(BENCHMARKS), help=f"of {','.join(BENCHMARKS)}")
    parser.add_argument("--pooled", action="store_true", help="the site is behind PgBouncer in transaction mode")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go, as JSON")
    options = parser.parse_args()
    try:
        with stack.servers(pooled=options.pooled) as servers:
            stack.set_up_site()
            figures, failed = _measure(servers, options)
    except ProcessError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(report.closing_line("bench", figures))
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measure(servers: Stack, options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Each benchmark on an empty database. Returns the figures, and the names of the benchmarks that failed."""
    found: list[Figure] = []
    failed = []
    print(report.HEAD, flush=True)
    for name in options.only:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        try:
            servers.empty()
            for figure in BENCHMARKS[name](servers, QUICK if options.quick else FULL):
                print(report.line(figure), flush=True)
                found.append(figure)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        report.write(found, options.out)
    return found, failed


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise argparse.ArgumentTypeError(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
