"""The guards that the system's promises rest on: one for each promise, each with the test that fails without it.

`make mutants` removes them one at a time and runs the test. The tables are the `.txt` files beside this one, a group
each. A group begins with lines of comment (`#`) and the files that `--all` searches for another killer (`files`, a
pattern of pathlib a line). A guard is

    claims._EXPIRED: claim: only an expired lease
    - _EXPIRED = f"status = 'running' AND lease_expires_at < {NOW}"
    + _EXPIRED = "status = 'running'"
    = tests/unit/runtime/test_store_claim.py::test_a_leased_run_is_not_claimable

- The symbol is the end of a definition's full name (`module.function`, `Class.method`, `module.CONSTANT`): as many of
  its last parts as make it the only one in the package. A file may move without a change here.
- The words behind the colon name the promise.
- `-` is the guard's text, which stands once in the symbol's definition. More lines of it begin with `-` too.
- `+` is the same code without the guard. It must still run: a mutant that breaks the import proves nothing. Without a
  `+` the text is removed.
- `=` is the killer: the test that fails without the guard. All cases of a parametrized test run, unless the id names
  one in brackets. **If you rename, move or merge this test, write its new id here.**

`tests/unit/project/test_mutants.py` checks the tables against the code. A guard without a known killer is not in them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TABLES = Path(__file__).parent
PACKAGE = "ravi_django"


@dataclass(frozen=True, slots=True)
class Guard:
    group: str  # the name of the table
    symbol: str
    promise: str
    before: str  # the guard's exact text, once in the symbol's definition
    after: str  # what stands there without it
    killer: str  # a test's id, from the root of the tree
    files: tuple[str, ...] = ()  # the group's patterns of test files

    def __str__(self) -> str:
        return f"{self.symbol}: {self.promise}"


@dataclass(frozen=True, slots=True)
class Definition:
    file: Path
    name: str  # from the package on
    start: int  # the first line, from 0
    end: int  # the line behind the last


def load(folder: Path = TABLES) -> list[Guard]:
    return [guard for table in sorted(folder.glob("*.txt")) for guard in parse(table.stem, table.read_text())]


def parse(group: str, text: str) -> Iterator[Guard]:
    head, *blocks = text.strip().split("\n\n")
    files = tuple(line.removeprefix("files ") for line in head.splitlines() if line.startswith("files "))
    for block in blocks:
        title, *lines = block.splitlines()
        symbol, _, promise = title.partition(": ")
        before, after, killer = ("\n".join(line[2:] for line in lines if line[0] == mark) for mark in "-+=")
        if not (promise and before and killer) or any(line[0] not in "-+=" for line in lines):
            raise ValueError(f"{group}.txt: no symbol, promise, text or killer in\n{block}")
        yield Guard(group, symbol, promise, before, after, killer, files)


def record(guard: Guard, killer: str, folder: Path = TABLES) -> None:
    """Write another killer into the guard's table."""
    table = folder / f"{guard.group}.txt"
    head, found, rest = table.read_text().partition(f"\n{guard}\n")
    table.write_text(head + found + rest.replace(f"= {guard.killer}\n", f"= {killer}\n", 1))


def without(guard: Guard, root: Path = ROOT) -> tuple[Path, str]:
    """The guard's file and its text without the guard; ValueError says what does not fit."""
    places = [place for place in definitions(root) if f".{place.name}".endswith(f".{guard.symbol}")]
    if len(places) != 1:
        names = ", ".join(place.name for place in places) or "nothing"
        raise ValueError(f"{guard}: the symbol must name one definition of {PACKAGE}; it names {names}")
    place = places[0]
    lines = place.file.read_text().splitlines(keepends=True)
    text = "".join(lines[place.start : place.end])
    if (count := text.count(guard.before)) != 1:
        raise ValueError(f"{guard}: the text {guard.before!r} must stand once in {place.name}; it stands {count} times")
    if guard.before == guard.after:
        raise ValueError(f"{guard}: `+` is the same as `-`")
    return place.file, "".join([*lines[: place.start], text.replace(guard.before, guard.after), *lines[place.end :]])


@cache
def definitions(root: Path) -> list[Definition]:
    """Functions, classes, methods and assigned names of the package, decorators included."""
    return [
        Definition(path, ".".join([*_module(path.relative_to(root)), *names]), start, end)
        for path in sorted((root / PACKAGE).rglob("*.py"))
        for names, start, end in _defined(ast.parse(path.read_text()).body)
    ]


def _module(path: Path) -> tuple[str, ...]:
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _defined(body: Sequence[ast.stmt]) -> Iterator[tuple[list[str], int, int]]:
    for node in body:
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", [])))
        for name in _names(node):
            yield [name], first - 1, node.end_lineno or first
        if isinstance(node, ast.ClassDef):
            for names, start, end in _defined(node.body):
                yield [node.name, *names], start, end


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def misfit(guard: Guard, root: Path = ROOT, *, tests: bool = True) -> str | None:
    """What is wrong with the guard's entry; None when it fits the tree. `tests`: whether its killer must be there."""
    try:
        _, text = without(guard, root)
        ast.parse(text)
    except ValueError as error:
        return str(error)
    except SyntaxError as error:
        return f"{guard}: is no Python without it ({error})"
    if tests and not is_test(guard.killer, root):
        return (
            f"{guard}: there is no {guard.killer}. If the test was renamed, moved or merged, write the new id into "
            f'tests/support/guards/{guard.group}.txt, or find it by `make mutants ARGS="--all {guard.symbol}"`'
        )
    return None


def is_test(killer: str, root: Path) -> bool:
    """Whether the file defines the test; a class may inherit it from another class of the file."""
    path, *names = killer.partition("[")[0].split("::")
    known = _tests(root / path)
    return names[-1] in known and all(name in known for name in names[:-1])


@cache
def _tests(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    defined = _defined(ast.parse(path.read_text()).body)
    return frozenset(names[-1] for names, _, _ in defined)
