"""What a site gets from the index: the built wheel has the package's own files, and nothing else."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
MOST_PACKAGES, MOST_MB = 89, 300  # docs/internals/dependencies.md; redis-py 5 brings the 89th


def shipped(pattern: str) -> set[str]:
    """As they lie in the checkout."""
    found = (path for path in (ROOT / "ravi_django").glob(pattern) if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


def test_the_wheel_carries_the_package(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("ravi_django-*.whl"))) as wheel:
        names = set(wheel.namelist())
        texts = {name: wheel.read(name).decode() for name in names if name.endswith(".md")}

    assert "ravi_django/py.typed" in names
    for pattern in ("**/*.py", "templates/**/*", "static/**/*", "locale/**/*"):
        assert shipped(pattern) and shipped(pattern) <= names, pattern
    pages = {f"ravi_django/{page.relative_to(ROOT)}" for page in (ROOT / "docs").rglob("*.md")}
    assert pages == {name for name in names if name.startswith("ravi_django/docs/")}
    for name, text in texts.items():
        for target in re.findall(r"^```\{include\} (\S+)", text, re.MULTILINE):
            assert os.path.normpath(Path(name).parent / target) in names, name
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ravi_django"}


def dependencies() -> list[str]:
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def with_theirs(requirements: list[str]) -> set[str]:
    """The names of the packages that pip installs for these."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        for extra in {"", *one.extras} - {extra for other, extra in seen if other == name}:
            seen.add((name, extra))
            theirs = map(Requirement, distribution(name).requires or ())
            waiting += [each for each in theirs if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def megabytes(name: str) -> float:
    files = (Path(str(file.locate())) for file in distribution(name).files or () if file.suffix != ".pyc")
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def test_an_install_without_extras_stays_small() -> None:
    names = with_theirs(dependencies())
    assert "litellm" in names and len(names) <= MOST_PACKAGES, sorted(names)
    assert sum(map(megabytes, names)) <= MOST_MB
    # So all tests of calls with tools show that litellm does not need it.
    assert "mcp" not in names and importlib.util.find_spec("mcp") is None


def test_the_page_of_dependencies_has_each() -> None:
    page = (ROOT / "docs/internals/dependencies.md").read_text().partition("## What litellm brings")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == [Requirement(one).name for one in dependencies()]
