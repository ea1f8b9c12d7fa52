"""What a site gets from the index: the built wheel has the package's own files, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]


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

    assert "ravi_django/py.typed" in names
    for pattern in ("**/*.py", "templates/**/*", "static/**/*", "locale/**/*"):
        assert shipped(pattern) and shipped(pattern) <= names, pattern
    pages = {f"ravi_django/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages == {name for name in names if name.startswith("ravi_django/docs/")}
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ravi_django"}
