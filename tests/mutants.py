"""Take guards out, one at a time, and see that a test fails: `make mutants`, or `python -m tests.mutants [NAME…]`.

Without arguments it removes the guards with a killer on record. `--all` removes every guard of the table. A name
selects the guards with this text in their names.

The guards, and what is left of the code without each, are the table in `tests/support/guards`. There is a bench for
each core (`tests/support/mutation_bench.py`): a copy of the tree, whose servers and imported libraries stay up while
one guard after the other is taken out of it and put back.

The test that killed a mutant is kept in `tests/support/guards/killers.json` and goes first, alone, the next time:
whole files run only where it is gone, or does not fail any more. A test that fails with every guard in its place kills
nobody: those that are known run on the whole tree before their mutants, a new one does after it has failed.

The last line is `mutants: killed=… survived=…`; the exit is 0 when none survived.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from tests.support.guards import MUTANTS, Mutant
from tests.support.mutation_bench import Bench

ROOT = Path(__file__).resolve().parent.parent
KILLERS = ROOT / "tests/support/guards/killers.json"  # by the mutants' names
AT_ONCE = min(os.cpu_count() or 1, 8)
NOTHING_RAN = 5  # pytest's exit


def main(parts: Sequence[str]) -> int:
    tally = Tally()
    mutants = chosen(parts, tally.killers)
    if wrong := [found for mutant in mutants if (found := misfit(mutant, ROOT))] or (
        [] if mutants else ["no such guard"]
    ):
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    groups = by_file(mutants, tally.killers)
    at_once = min(AT_ONCE, len(groups))
    print(f"{len(mutants)} guards, {len(groups)} files of tests, {at_once} at once", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ravi-mutants-")))
        copy_tree(ROOT, folder / "whole")
        free: SimpleQueue[Bench] = SimpleQueue()
        for number in range(at_once):
            free.put(stack.enter_context(Bench(folder / str(number), folder / "whole")))

        def work(group: Sequence[Mutant]) -> None:
            bench = free.get()
            try:
                judge_group(bench, group, tally)
            finally:
                free.put(bench)

        list(stack.enter_context(ThreadPoolExecutor(at_once)).map(work, groups))
    print(f"mutants: killed={tally.killed} survived={len(mutants) - tally.killed}")
    return 0 if tally.killed == len(mutants) else 1


def chosen(parts: Sequence[str], killers: Container[str]) -> list[Mutant]:
    if not parts:
        return [mutant for mutant in MUTANTS if mutant.name in killers]
    return [mutant for mutant in MUTANTS if "--all" in parts or any(part in mutant.name for part in parts)]


class Tally:
    """What came of each mutant, printed as it comes; the tests that killed are kept."""

    def __init__(self) -> None:
        self.killers: dict[str, str] = json.loads(KILLERS.read_text())
        self.killed = 0
        self._lock = Lock()

    def kill(self, mutant: Mutant, killer: str, seconds: float) -> None:
        with self._lock:
            print(f"killed    {mutant.name}: {killer} ({seconds:.1f} s)", flush=True)
            self.killed += 1
            self.killers[mutant.name] = killer
            known = sorted({mutant.name for mutant in MUTANTS} & self.killers.keys())
            KILLERS.write_text(json.dumps({name: self.killers[name] for name in known}, indent=1) + "\n")

    def survive(self, mutant: Mutant, words: str) -> None:
        with self._lock:
            print(f"SURVIVED  {mutant.name}: {words}", flush=True)


def by_file(mutants: Sequence[Mutant], killers: dict[str, str]) -> list[list[Mutant]]:
    """Those that the same file of tests is to kill, largest group first: the last to end is a small one."""
    groups: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(killers.get(mutant.name, mutant.tests[0]).partition("::")[0], []).append(mutant)
    return sorted(groups.values(), key=len, reverse=True)


def judge_group(bench: Bench, group: Sequence[Mutant], tally: Tally) -> None:
    known = {mutant.name: tally.killers[mutant.name] for mutant in group if mutant.name in tally.killers}
    there = {name: test for name, test in known.items() if (bench.tree / test.partition("::")[0]).is_file()}
    whole = bench.run(sorted(set(there.values()))) if there else None
    for mutant in group:
        killer = there.get(mutant.name)
        if whole and (killer in whole.failed or whole.exit not in (0, 1, NOTHING_RAN)):
            tally.survive(mutant, f"{killer} fails with every guard in its place:\n{whole.output}")
        else:
            judge(bench, mutant, killer if whole and killer in whole.passed else None, tally)


def judge(bench: Bench, mutant: Mutant, killer: str | None, tally: Tally) -> None:
    """`killer` is a test that passes with the guard in its place."""
    begun = time.monotonic()
    with bench.without(mutant):
        outcome = bench.run([killer], first=True) if killer else None
        if not (outcome and outcome.failed):
            outcome = bench.run(mutant.tests, first=True)
    if outcome.failed:
        failed = outcome.failed[0]
        if failed == killer or failed in (whole := bench.run([failed])).passed:
            tally.kill(mutant, failed, time.monotonic() - begun)
        else:
            tally.survive(mutant, f"{failed} fails with the guard in its place as well:\n{whole.output}")
    elif outcome.exit == 0:
        tally.survive(mutant, f"{', '.join(mutant.tests)} passed without it")
    else:
        tally.survive(mutant, f"its tests did not run to an end (exit {outcome.exit}):\n{outcome.output}")


def misfit(mutant: Mutant, root: Path) -> str | None:
    """What is wrong with the mutant's row of the table; None when it fits the tree."""
    for path in (mutant.file, *mutant.tests):
        if not (root / path).is_file():
            return f"{mutant.name}: there is no {path}"
    found = (root / mutant.file).read_text().count(mutant.before)
    if found == 0:
        return f"{mutant.name}: {mutant.before!r} is not in {mutant.file} any more; see tests/support/guards"
    if found > 1:
        return f"{mutant.name}: {mutant.before!r} is {found} times in {mutant.file}; give more of the text around it"
    return f"{mutant.name}: changes nothing" if mutant.before == mutant.after else None


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
