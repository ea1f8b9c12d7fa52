"""The peers' own virtual environment, so that what they need never meets what we need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from project.process import ProcessError

REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
VENV = Path(__file__).resolve().parents[2] / ".bench-venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".installed"


def install() -> None:
    """Make it when it is not there or not up to date. Raises ProcessError."""
    wanted = REQUIREMENTS.read_text()
    if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
        return
    print("installing the peers into .bench-venv (a minute or two the first time)", file=sys.stderr, flush=True)
    _run(sys.executable, "-m", "venv", "--clear", str(VENV))
    _run(str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS))
    STAMP.write_text(wanted)


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ProcessError(f"{' '.join(command)} failed\n{done.stdout[-2000:]}")
