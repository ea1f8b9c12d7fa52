"""What makes the environment: into the checkout that it is run in, and no other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_an_environment_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    (copy / ".ci").mkdir(parents=True)
    (other / "bin").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "install", copy / ".ci" / "install")
    shutil.copy(ROOT / "pyproject.toml", copy / "pyproject.toml")
    used = other / "used"
    python = other / "bin" / "python"
    python.write_text(f"#!/bin/sh\ntouch {used}\n")
    python.chmod(0o755)
    (copy / ".venv").symlink_to(other)

    command = [sys.executable, str(copy / ".ci" / "install"), "dev"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 2 and f".venv is a link to {other}" in done.stderr
    assert not used.exists() and not list(other.glob(".installed-*"))
