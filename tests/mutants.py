"""Take every guard out, one at a time, and see that a test fails: `make mutants`, or `python -m tests.mutants [NAME…]`.

Each mutant is a copy of the tree with one text replaced (the table is in `tests/support/guards`). The tests named
for it run in the copy, with servers of their own. Before any of them, the same tests run once on a copy that nothing
was taken out of: a test that fails anyway kills nobody.

The test that killed a mutant is kept in `tests/support/guards/killers.json` and goes first the next time: whole files
run only where it is gone, or does not fail any more.

The last line is `mutants: killed=… survived=…`; the exit is 0 when none survived.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.guards import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
KILLERS = ROOT / "tests/support/guards/killers.json"  # by the mutants' names
AT_ONCE = 2  # each starts a PostgreSQL and a Valkey
TEST_S = 60  # a test that hangs without its guard has failed
RUN_S = 300  # one mutant's tests
CONTROL_S = 600  # all of them, on the whole tree


@dataclass(frozen=True, slots=True)
class Verdict:
    killed: bool
    words: str  # the test that failed first, or what went wrong


def main(parts: Sequence[str]) -> int:
    mutants = [mutant for mutant in MUTANTS if not parts or any(part in mutant.name for part in parts)]
    if wrong := [found for mutant in mutants if (found := misfit(mutant, ROOT))] or (
        [] if mutants else ["no such guard"]
    ):
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ravi-mutants-") as folder:
        whole = Path(folder) / "whole"
        copy_tree(ROOT, whole)
        if fault := control(whole, mutants):
            print(fault, file=sys.stderr)
            return 2
        killers = json.loads(KILLERS.read_text())
        killed = 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            verdicts = pool.map(lambda one: judge(one, whole, killers.get(one.name)), mutants)
            for mutant, verdict in zip(mutants, verdicts, strict=True):
                print(f"{'killed  ' if verdict.killed else 'SURVIVED'}  {mutant.name}: {verdict.words}", flush=True)
                killed += verdict.killed
                if verdict.killed:
                    killers[mutant.name] = verdict.words
                    keep(killers)
    print(f"mutants: killed={killed} survived={len(mutants) - killed}")
    return 0 if killed == len(mutants) else 1


def keep(killers: dict[str, str]) -> None:
    known = sorted({mutant.name for mutant in MUTANTS} & killers.keys())
    KILLERS.write_text(json.dumps({name: killers[name] for name in known}, indent=1) + "\n")


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


def control(whole: Path, mutants: Sequence[Mutant]) -> str | None:
    """Words when the tests fail with every guard in its place."""
    files = sorted({path for mutant in mutants for path in mutant.tests})
    print(f"{len(mutants)} guards; first, {len(files)} files of tests with all of them in place", flush=True)
    begun = time.monotonic()
    code, output = run_tests(whole, ["-n", str(AT_ONCE), *files], CONTROL_S)
    if code:
        return f"the tests fail with every guard in its place, so none can be judged:\n{output[-3000:]}"
    print(f"they pass, in {time.monotonic() - begun:.0f} s", flush=True)
    return None


def judge(mutant: Mutant, whole: Path, killer: str | None = None) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="ravi-mutant-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(whole, tree, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        path = tree / mutant.file
        path.write_text(path.read_text().replace(mutant.before, mutant.after))
        code, output = run_tests(tree, [killer], RUN_S) if killer else (0, "")
        if not (code == 1 and failed_first(output)):
            code, output = run_tests(tree, mutant.tests, RUN_S)
    if code == 1 and (failed := failed_first(output)):
        return Verdict(True, failed)
    if code == 0:
        return Verdict(False, f"{', '.join(mutant.tests)} passed without it")
    return Verdict(False, f"its tests did not run to an end (exit {code}):\n{output[-2000:]}")


def failed_first(output: str) -> str | None:
    found = re.search(r"^(tests/.+?) FAILED", output, re.MULTILINE)  # as it happens: the end may not be reached
    return found[1] if found else None


def run_tests(tree: Path, files: Sequence[str], timeout: float) -> tuple[int, str]:
    """pytest's exit and output. The tree comes before an installed copy of the project, in what it starts too."""
    env = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")}
    env |= {"PYTHONPATH": str(tree), "CI": "true"}  # in CI, hypothesis takes the same examples each time
    command = [sys.executable, "-m", "pytest", "-x", "-v", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-o", f"timeout={TEST_S}", *files]
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        return -1, f"not done within {timeout:.0f} s\n{error.stdout or ''}"
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
