"""The effects as the outside world saw them: a file beside the database, one line an effect, never rewritten.

One write to a file opened with O_APPEND: lines of several processes do not mix, and a SIGKILL behind it takes
nothing back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LEDGER = "ledger"
ACKNOWLEDGED = "acknowledged"  # rows of journals that a worker was told were recorded


def note(kind: str, file: str = LEDGER, /, **said: Any) -> None:
    """Append a line to the ledger of this laboratory, or to another such file."""
    line = json.dumps({"kind": kind, "pid": os.getpid(), **said}) + "\n"
    handle = os.open(_path(Path(os.environ["CRASH_FOLDER"]), file), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(handle, line.encode())
    finally:
        os.close(handle)
    assert written == len(line.encode()), "half a line in the ledger"


def read(folder: Path, file: str = LEDGER) -> list[dict[str, Any]]:
    path = _path(folder, file)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _path(folder: Path, file: str) -> Path:
    return folder / f"{file}.jsonl"
