"""The matrix of Python and Django: `nox` runs the quick gate in each column whose Python is installed.

    nox -l                                            the columns
    nox -s "gate(3.12-django-6.0)" -- tests/unit/agents    one column, these tests
    nox -s "whole(3.14-django-6.1)"                   the whole suite

The lowest column has the lowest version that pyproject.toml allows of each dependency, those of the extras included.
All other packages are new.
"""

from __future__ import annotations

import re
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.error_on_missing_interpreters = False
nox.options.stop_on_first_error = False

LOWEST = "lowest"
EXTRAS = ("postgres", "openapi", "feeds", "files")  # the other extras are for work on the package
COLUMNS = {
    "3.11-lowest": ("3.11", LOWEST),
    "3.12-django-5.2": ("3.12", "5.2"),
    "3.12-django-6.0": ("3.12", "6.0"),
    "3.13-django-6.0": ("3.13", "6.0"),
    "3.13-django-6.1": ("3.13", "6.1"),
    "3.14-django-6.1": ("3.14", "6.1"),
}
GATE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")


def columns(names: list[str]):  # type: ignore[no-untyped-def]
    return nox.parametrize("python,django", [COLUMNS[name] for name in names], ids=names)


@nox.session
@columns(list(COLUMNS))
def gate(session: nox.Session, django: str) -> None:
    """The tests before each change."""
    install(session, django)
    session.run("python", "-m", "pytest", *GATE, *session.posargs)


@nox.session(default=False)
@columns(list(COLUMNS))
def whole(session: nox.Session, django: str) -> None:
    """All tests, as `make test-all` runs them."""
    install(session, django)
    session.run("python", "-m", "pytest", *GATE, "-m", "not llm", *session.posargs)


def install(session: nox.Session, django: str) -> None:
    constraints = Path(session.virtualenv.location) / "constraints.txt"  # `create_tmp` would move the tests' folders
    lines = lowest() if django == LOWEST else [f"django=={django}.*"]
    constraints.write_text("".join(f"{line}\n" for line in lines))
    session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", "django-admin-agent", silent=True)  # see below
    session.install("--no-compile", "-e", ".[dev]", "-c", str(constraints))
    session.run("python", "-m", "pip", "check")
    without = re.findall(r"django-admin-agent==[\d.]+", Path(".ci/install").read_text())
    session.install("--no-compile", "--no-deps", *without)
    session.run("python", "-c", VERSIONS)


def lowest() -> list[str]:
    """The requirements of pyproject.toml at their floors: `name==version`."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    needed = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    return [re.sub(r"^([\w-]+)(?:\[.*\])?>=([\w.]+).*", r"\1==\2", one) for one in sorted(needed)]


VERSIONS = """
import sys
from importlib.metadata import version
print("python", sys.version.split()[0], *(f"{name} {version(name)}" for name in
      ("django", "djangorestframework", "celery", "channels", "pydantic", "litellm")), sep=", ")
"""
