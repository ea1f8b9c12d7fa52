"""Take guards out, one at a time, and see that a test fails: `make mutants`, or `python -m tests.mutants [PART…]`.

The guards are the tables in `tests/support/guards`. Each names the test that fails without it, and that test runs. A
part selects the groups of this name, and the guards with this text in their symbol or promise.

`--all` also searches: where the killer is gone or does not fail, it runs the killer's file and the files of the group,
and writes the test that fails into the table.

There is a bench for each core (`tests/support/mutation_bench.py`): a copy of the tree, whose servers and imported
libraries stay up while one guard after the other is taken out of it and put back. A test that fails with every guard in
its place kills nobody: killers run on the whole tree before their mutants, and a new one does after it has failed.

The last line is `mutants: killed=… survived=…`; the exit is 0 when none survived.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from tests.support import guards
from tests.support.guards import ROOT, Guard
from tests.support.mutation_bench import Bench, is_case

AT_ONCE = min(os.cpu_count() or 1, 8)


def main(arguments: Sequence[str]) -> int:
    parts = [argument for argument in arguments if argument != "--all"]
    searches = len(parts) < len(arguments)
    table = chosen(guards.load(), parts)
    wrong = [found for guard in table if (found := guards.misfit(guard, tests=not searches))]
    if wrong or not table:
        print(*(wrong or ["no such guard"]), sep="\n", file=sys.stderr)
        return 2
    groups = by_file(table)
    at_once = min(AT_ONCE, len(groups))
    print(f"{len(table)} guards, {len(groups)} files of tests, {at_once} at once", flush=True)
    tally = Tally()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ravi-mutants-")))
        copy_tree(ROOT, folder / "whole")
        free: SimpleQueue[Bench] = SimpleQueue()
        for number in range(at_once):
            free.put(stack.enter_context(Bench(folder / str(number), folder / "whole")))

        def work(group: Sequence[Guard]) -> None:
            bench = free.get()
            try:
                judge_group(bench, group, tally, searches=searches)
            finally:
                free.put(bench)

        list(stack.enter_context(ThreadPoolExecutor(at_once)).map(work, groups))
    print(f"mutants: killed={tally.killed} survived={len(table) - tally.killed}")
    return 0 if tally.killed == len(table) else 1


def chosen(table: Iterable[Guard], parts: Sequence[str]) -> list[Guard]:
    return [guard for guard in table if not parts or any(part == guard.group or part in str(guard) for part in parts)]


class Tally:
    """What came of each mutant, printed as it comes; a new killer is written into the table."""

    def __init__(self) -> None:
        self.killed = 0
        self._lock = Lock()

    def kill(self, guard: Guard, killer: str, seconds: float) -> None:
        with self._lock:
            print(f"killed    {guard}: {killer} ({seconds:.1f} s)", flush=True)
            self.killed += 1
            if killer != guard.killer:
                guards.record(guard, killer)

    def survive(self, guard: Guard, words: str) -> None:
        with self._lock:
            print(f"SURVIVED  {guard}: {words}", flush=True)


def by_file(table: Iterable[Guard]) -> list[list[Guard]]:
    """Those with killers of one file, largest group first: the last to end is a small one."""
    groups: dict[str, list[Guard]] = {}
    for guard in table:
        groups.setdefault(guard.killer.partition("::")[0], []).append(guard)
    return sorted(groups.values(), key=len, reverse=True)


def judge_group(bench: Bench, group: Sequence[Guard], tally: Tally, *, searches: bool) -> None:
    path = group[0].killer.partition("::")[0]
    whole = bench.run(sorted({guard.killer for guard in group})) if (bench.tree / path).is_file() else None
    for guard in group:
        if whole and (whole.is_broken or any(is_case(test, guard.killer) for test in whole.failed)):
            tally.survive(guard, f"{guard.killer} fails with every guard in its place:\n{whole.output}")
        else:
            judge(
                bench,
                guard,
                tally,
                is_there=bool(whole and any(is_case(test, guard.killer) for test in whole.passed)),
                searches=searches,
            )


def judge(bench: Bench, guard: Guard, tally: Tally, *, is_there: bool, searches: bool) -> None:
    """Whether the killer, which passes with the guard in its place, fails without it, or else another test."""
    begun = time.monotonic()
    tests = [guard.killer] if is_there else []
    with bench.without(guard):
        outcome = bench.run(tests, first=True) if tests else None
        if outcome and outcome.failed:
            tally.kill(guard, guard.killer, time.monotonic() - begun)
            return
        if searches and not (outcome and outcome.is_broken):
            tests = searched(guard, bench.tree)
            outcome = bench.run(tests, first=True)
    if outcome is None:
        tally.survive(guard, f"there is no {guard.killer}")
    elif outcome.failed:
        killer = outcome.failed[0].partition("[")[0]
        whole = bench.run([killer])
        if whole.passed and not whole.failed:
            tally.kill(guard, killer, time.monotonic() - begun)
        else:
            tally.survive(guard, f"{killer} fails with the guard in its place as well:\n{whole.output}")
    elif outcome.is_broken:
        tally.survive(guard, f"its tests did not run to an end (exit {outcome.exit}):\n{outcome.output}")
    else:
        tally.survive(guard, f"{', '.join(tests)} passed without it")


def searched(guard: Guard, tree: Path) -> list[str]:
    """The killer's file, and then those of the group."""
    files = [guard.killer.partition("::")[0]]
    files += [str(path.relative_to(tree)) for pattern in guard.files for path in sorted(tree.glob(pattern))]
    return [path for path in dict.fromkeys(files) if (tree / path).is_file()]


def copy_tree(source: Path, target: Path) -> None:
    """The files that git knows, and those that it would: not .venv, nor what tests and builds leave behind."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (source / name).is_file():  # not one that was deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
