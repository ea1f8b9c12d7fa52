"""A name says what the thing is (STYLE, "Language"). These words name nothing: rows, index, value and detail do."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "ravi_django"
BANNED = set("found place given said shown mine its own words faults told whose kept described".split())

ALLOWED = {
    "api/filters.py: mine",  # a parameter of REST
}


def defined(tree: ast.AST) -> Iterator[str]:
    """The names of functions, classes, parameters, variables and attributes that the code defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.MatchAs() | ast.ExceptHandler():
                yield node.name or ""
            case ast.MatchStar():
                yield node.name or ""
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def banned_names(tree: ast.AST) -> set[str]:
    return {name for name in defined(tree) if name.strip("_").lower() in BANNED}


def test_names_say_what_the_thing_is() -> None:
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        names |= {f"{file}: {name}" for name in banned_names(ast.parse(path.read_text()))} - ALLOWED

    assert sorted(names) == [], "name the thing: rows, agent, index, value, detail, errors …"


def test_what_the_rule_finds() -> None:
    for program in [
        "found = 1",
        "def f(given): ...",
        "class Kept: ...",
        "def _shown(): ...",
        "self._place = 1",
        "[its for its in rows]",
        "(words := 1)",
    ]:
        assert banned_names(ast.parse(program)), program
    assert not banned_names(ast.parse("from texts import shown\nprint(row.place, shown, place_of(row))"))
