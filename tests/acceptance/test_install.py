"""What a site gets from the index: the built wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return zipfile.Path(next(folder.glob("ravi_django-*.whl")))


def names_of(wheel: zipfile.Path) -> set[str]:
    return set(wheel.root.namelist())


def shipped(pattern: str) -> set[str]:
    """The package's own files, as they lie in the checkout."""
    found = (path for path in (ROOT / "ravi_django").glob(pattern) if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


def test_wheel_carries_the_typing_marker(wheel: zipfile.Path) -> None:
    assert "ravi_django/py.typed" in names_of(wheel)


@pytest.mark.parametrize("kind", ["**/*.py", "templates/**/*", "static/**/*", "locale/**/*"])
def test_wheel_carries_all_of(wheel: zipfile.Path, kind: str) -> None:
    assert shipped(kind)
    assert shipped(kind) <= names_of(wheel)


def test_wheel_carries_nothing_else(wheel: zipfile.Path) -> None:
    tops = {name.split("/")[0] for name in names_of(wheel)}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"ravi_django"}
