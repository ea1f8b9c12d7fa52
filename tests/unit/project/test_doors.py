"""A file of the package moves without touching a test: tests reach inside through `tests.support.world` alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ravi_django import RunContext
from tests.support import verbs

TESTS = Path(__file__).parents[2]
DOOR = TESTS / "support" / "world.py"
FILES = [path for path in TESTS.rglob("*.py") if path not in (DOOR, Path(__file__))]
INSIDE = re.compile(
    r"ravi_django\.(?:(?:engine|runs|live|calls\.(?:tools|model|middleware)|wings\.(?:events|feeds\.so\w+|feeds\.schedules))\b"
    r"|people\.(?!answer$|cancel$|reassign$|revoke$))"
)
IMPORT = re.compile(r"^ *(?:from|import) (ravi_django\.\S+)", re.MULTILINE)


def is_inside(name: str) -> bool:
    parts = name.split(".")
    return bool(INSIDE.match(name)) or (parts[0] == "ravi_django" and any(re.match("_[^_]", part) for part in parts))


def reached(tree: ast.AST) -> Iterator[str]:
    """Names inside the package that a program imports, patches by their path, or imports in a program of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            yield from (str(part.value) for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from IMPORT.findall(node.value)


def test_tests_reach_inside_through_the_door_alone() -> None:
    found = [(str(path.relative_to(TESTS)), name) for path in FILES for name in reached(ast.parse(path.read_text()))]

    assert [place for place in found if is_inside(place[1])] == [], "add a verb to tests/support/verbs.py"


def test_what_the_rule_finds() -> None:
    for program, inside in [
        ("from ravi_django.engine import journal", True),
        ("import ravi_django.people.rows as rows", True),
        ("from ravi_django.agents._loop import deliver", True),
        ("from ravi_django.tasks import _serves", True),
        ("monkeypatch.setattr('ravi_django.runs.hints.send', None)", True),
        ("monkeypatch.setattr(f'ravi_django.engine.{module}.get_buffer', None)", True),
        ("PROGRAM = '''\nfrom ravi_django.runs import submit\n'''", True),
        ("from ravi_django.models import Run", False),
        ("from ravi_django import __version__", False),
        ("from ravi_django.people import answer", False),
        ("from ravi_django.runtime import Runtime", False),
    ]:
        assert any(is_inside(name) for name in reached(ast.parse(program))) is inside, program


def test_star_imports_have_the_names_of_higher_layers_too() -> None:
    for module, name in (("ravi_django.agents", "Runtime"), ("ravi_django.agents.context", "DjangoHistoryProvider")):
        names: dict[str, object] = {}
        exec(f"from {module} import *", names)
        assert name in names and "Any" not in names


def test_the_glossary_names_methods_that_exist() -> None:
    named = re.findall(r"`ctx\.(\w+)", (TESTS.parent / "docs/internals/glossary.md").read_text())
    assert named and [name for name in named if not hasattr(RunContext, name)] == []


def test_every_verb_leads_to_something() -> None:
    for verb in verbs.VERBS:
        getattr(verbs, verb)
