"""`make bench-peers`: the same loop in other systems, on the same PostgreSQL, in the same run, in turns.

Each peer is used as its documentation says, in an environment of its own (.bench-venv), with versions pinned in
requirements.txt. docs/internals/benchmarks.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import report, stack
from benchmarks.peers import comparison, environment
from benchmarks.peers.comparison import OURS, Compared
from benchmarks.peers.process import System, running
from benchmarks.raw_commit import RawCommit
from benchmarks.run import OUT
from benchmarks.stack import Stack
from project.process import ProcessError

LEASE_S = 3.0  # of the recovery; DBOS has none
LONG_LEASE_S = 120.0
FEATURES = {
    "absurd": {"stored", "wake_up", "recovery"},
    "dbos": {"stored", "wake_up", "recovery"},
    "langgraph": {"stored", "wake_up"},
    "openai_agents": set(),
    "pydantic_ai": {"stored"},  # by DBOS, which also wakes and recovers its workflows
}
SYSTEMS = (OURS, *FEATURES)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: dict[int, int]  # turns: runs whose steps are timed
    stored: dict[int, int]  # turns: runs whose bytes are counted
    wake_ups: int  # one after another
    recoveries: int


FULL = Plan({1: 40, 10: 40, 50: 15, 200: 7}, {1: 1_000, 10: 60, 200: 5}, wake_ups=30, recoveries=3)
QUICK = Plan({1: 2, 6: 2}, {1: 3, 6: 3}, wake_ups=3, recoveries=1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Measure others beside us.")
    parser.add_argument("--quick", action="store_true", help="few repetitions: the figures mean little")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures go, as JSON")
    options = parser.parse_args()
    try:
        environment.install()
        with stack.servers() as servers:
            stack.set_up_site()
            figures = list(_measure(servers, QUICK if options.quick else FULL))
    except ProcessError as error:
        print(f"bench-peers: {error}", file=sys.stderr)
        return 1
    report.write(figures, options.out)
    print(report.table(comparison.rows(figures, SYSTEMS)))
    print("\n".join(comparison.ahead(figures)))
    print(report.closing_line("bench-peers", figures))
    return 0


def _measure(servers: Stack, plan: Plan) -> Iterator[Compared]:
    from benchmarks import storage

    _say("the bytes that ours stores")
    ours = [figure for figure in storage.measure(plan.stored, servers.database_url) if figure.name == "stored_per_run"]
    with ExitStack() as opened, RawCommit(servers.database_url) as raw:
        systems = [opened.enter_context(running(System(name, servers, LONG_LEASE_S))) for name in SYSTEMS]
        yield from _steps(systems, plan.steps, raw)
        systems.pop(0).kill()  # the wake-up is measured in a Celery worker
        yield from _stored(systems, plan.stored, {figure.turns or 0: figure.value for figure in ours})
        yield from _wake_ups(servers, systems, plan.wake_ups)
    yield from _recoveries(servers, plan.recoveries)


def _steps(systems: Sequence[System], plan: Mapping[int, int], raw: RawCommit) -> Iterator[Compared]:
    """Milliseconds a step of the fastest run."""
    for turns, times in plan.items():
        _say(f"steps of {turns} turns")
        taken: dict[str, list[float]] = {system.name: [] for system in systems}
        commits: dict[str, list[float]] = {system.name: [] for system in systems}
        for repetition in range(times + 1):  # the first fills caches
            for system in systems:
                one_commit = raw.sample()
                step = system.ask(f"step {turns}")
                if repetition:
                    commits[system.name] += one_commit
                    taken[system.name].append(step)
        for name, samples in taken.items():
            value = min(samples)
            ratio, of_ours = value / median(commits[name]), value / min(taken[OURS])
            yield Compared("step", turns, value, "ms", ratio, system=name, of_ours=of_ours)


def _stored(systems: Sequence[System], plan: Mapping[int, int], ours: Mapping[int, float]) -> Iterator[Compared]:
    for turns, runs in plan.items():
        _say(f"the bytes that runs of {turns} turns store")
        found = {OURS: ours[turns]}
        for system in systems:
            if "stored" in FEATURES[system.name]:
                before = system.stored()
                for _ in range(runs):
                    system.ask(f"step {turns}")
                found[system.name] = (system.stored() - before) / runs / 1000
        yield from _compared("stored_per_run", turns, found, "kB")


def _wake_ups(servers: Stack, systems: Sequence[System], samples: int) -> Iterator[Compared]:
    from benchmarks import durability
    from benchmarks.in_flight import ready_worker

    _say("wake-up")
    found: dict[str, list[float]] = {}
    with ready_worker(servers, ["react/bench-instant"], BENCH_SCRIPTED_ALONE="1") as worker:
        for sample in range(samples + 1):  # the first fills caches
            taken = {OURS: durability.wake_once(worker, 0)}
            taken |= {system.name: system.ask("wake") for system in systems if "wake_up" in FEATURES[system.name]}
            if sample:
                for name, value in taken.items():
                    found.setdefault(name, []).append(value)
    yield from _compared("wake_up_p50", None, {name: median(values) for name, values in found.items()}, "ms")


def _recoveries(servers: Stack, samples: int) -> Iterator[Compared]:
    """From SIGKILL to the first line of the step that was interrupted; ours to the next lease of the run."""
    from benchmarks import durability

    _say("recovery")
    ours = {figure.name: figure.value for figure in durability.recovery(servers, samples)}
    found = {OURS: ours["recovery_median"]}
    for name in SYSTEMS[1:]:
        if "recovery" in FEATURES[name]:
            found[name] = median(_recover_once(name, servers) for _ in range(samples))
    leases = {OURS: durability.LEASE_S, "absurd": LEASE_S}
    yield from _compared("recovery", None, found, "s")
    for name, value in found.items():  # about 0 of ours: no ratio
        yield Compared("recovery_beyond_lease", None, value - leases.get(name, 0.0), "s", system=name)


def _recover_once(name: str, servers: Stack) -> float:
    with running(System(name, servers, LEASE_S, "doomed")) as doomed:
        doomed.ask("hold")
        begun = time.time()
    with running(System(name, servers, LEASE_S, "next")) as following:
        return following.ask("resumed") - begun


def _compared(what: str, turns: int | None, found: Mapping[str, float], unit: str) -> Iterator[Compared]:
    for name, value in found.items():
        yield Compared(what, turns, value, unit, system=name, of_ours=value / found[OURS])


def _say(what: str) -> None:
    print(f"measuring {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
