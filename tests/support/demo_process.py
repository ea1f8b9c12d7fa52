"""`make demo` as a process of its own, for tests that meet it as a person does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from project.process import wait_until

ROOT = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 60.0


class RunningDemo:
    def __init__(self, process: subprocess.Popen[str], port: int, output: Path) -> None:
        self.process = process
        self.port = port
        self.output = output

    @property
    def text(self) -> str:
        return self.output.read_text()

    def says(self, words: str, timeout: float = 150.0) -> bool:
        wait_until(lambda: words in self.text or self.process.poll() is not None, timeout, poll=0.1)
        return words in self.text

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, words: str) -> psutil.Process:
        return next(child for child in self.family() if words in " ".join(child.cmdline()))


@contextmanager
def demo(port: int, folder: Path, *arguments: str, model: str = "") -> Iterator[RunningDemo]:
    """A demo in a process group of its own, whose output goes to a file; killed at the end when it still runs."""
    environment = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "REDIS_URL"}}
    environment |= {"PORT": str(port), "HOST": "127.0.0.1", "MODEL": model}
    output = folder / f"demo-{port}-{len(list(folder.iterdir()))}.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "project.demo", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield RunningDemo(process, port, output)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def all_gone(processes: list[psutil.Process], timeout: float = 60.0) -> bool:
    return not psutil.wait_procs(processes, timeout=timeout)[1]
