"""Virtual environments for sites with another Django, kept in `.cache/sites/`; `make clean` removes them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "sites"
OLDEST = {"6": (3, 12)}  # Python, by Django's major version


def python_of(django: str) -> str:
    """The Python of an environment with the app and that Django. Skips the test where the machine has none for it."""
    base = next(_pythons(OLDEST[django]), None)
    if base is None:
        pytest.skip(f"Django {django} needs Python {'.'.join(map(str, OLDEST[django]))} or newer")
    state = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + base.encode()).hexdigest()[:12]
    folder = CACHE / f"django{django}-{state}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            _install(base, folder, f"django~={django}.0")
    return str(folder / "bin" / "python")


def _install(base: str, folder: Path, django: str) -> None:
    for old in CACHE.glob(f"{folder.name.partition('-')[0]}-*/"):
        shutil.rmtree(old)
    subprocess.run([base, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "-e", ROOT, django, "whitenoise"], check=True, stderr=subprocess.DEVNULL)
    (folder / "installed").touch()


def _pythons(oldest: tuple[int, int]) -> Iterator[str]:
    """Those on the PATH and of pyenv; a shim of pyenv for a version that is switched off does not run."""
    names = [f"python3.{minor}" for minor in range(20, oldest[1] - 1, -1)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    places = [*filter(None, map(shutil.which, names))]
    places += [str(path) for name in names for path in pyenv.glob(f"{name.removeprefix('python')}.*/bin/python")]
    if sys.version_info >= oldest:
        yield sys.executable
    for place in places:
        if subprocess.run([place, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            yield place
