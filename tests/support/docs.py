"""The code that README and the pages of the docs show, to be run by tests. No test has a copy of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from project.process import wait_until
from project.services import free_port, port_is_free
from tests.support import forks
from tests.support.patience import BOUND_S, seconds

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```(\w+)\n(?:(?:#|//|<!--) ([\w/-]+\.\w+)(?: -->)?\n)?(.*?)^```", re.DOTALL | re.MULTILINE)
EXTENDED = ("settings.py", "urls.py", "models.py")  # blocks are added to these files; they replace others
SERVERS = ("runserver", "uvicorn", "ravi_worker", "worker", "beat")
ACCOUNT = {"USERNAME": "ada", "PASSWORD": "a-password-of-the-test", "EMAIL": "ada@example.com"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    file: str  # the path that its first line names, or ""
    text: str  # without that line

    @property
    def steps(self) -> list[str]:
        """What a reader does with it: each command is one action, a file is one."""
        return self.text.splitlines() if self.language == "sh" else [self.file]


class Page:
    """`docs/*/<name>.md`, or README. Its blocks of code begin with a comment, their name."""

    def __init__(self, name: str) -> None:
        (path,) = [page for page in PAGES if page.stem == name]
        self.name, self.text = str(path.relative_to(ROOT)), path.read_text()

    @property
    def blocks(self) -> list[Block]:
        return [Block(*match.groups(default="")) for match in FENCED.finditer(self.text)]

    def code(self, name: str, language: str = "python") -> str:
        match = re.search(rf"```{language}\n(?:#|//) {re.escape(name)}\n(.*?)```", self.text, re.DOTALL)
        assert match, f"{self.name} has no block {name}"
        return match.group(1)

    def run(self, name: str) -> dict[str, Any]:
        """What the block defines."""
        names: dict[str, Any] = {"__name__": name}
        exec(compile(self.code(name), name, "exec"), names)
        return names


def quickstart() -> list[Block]:
    """README's blocks from `pip install` to the first `runserver`."""
    blocks = Page("README").blocks
    last = next(index for index, block in enumerate(blocks) if "runserver" in block.text)
    return blocks[: last + 1]


def with_real_model(block: Block) -> Block:
    """As README says after the first answer."""
    (model,) = re.findall(r'Write `(model="[^"]+")`', Page("README").text)
    return replace(block, text=block.text.replace('model="rehearsal"', model))


def write(folder: Path, block: Block) -> None:
    """Type a block into the file that it names."""
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() if path.name in EXTENDED and path.exists() else ""
    path.write_text(f"{before}\n{block.text}")


class Reader:
    """Follows pages in an empty folder: types their files, runs their commands, and starts their processes."""

    def __init__(self, folder: Path, *, reloads: bool = False, **environment: str) -> None:
        """A `runserver` that reloads starts its site without the libraries that a fork has imported."""
        self.folder, self.port, self.reloads = folder, free_port(), reloads
        kept = ("HOME", "LANG", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **{f"DJANGO_SUPERUSER_{name}": value for name, value in ACCOUNT.items()},
            **environment,
        }
        self.processes: dict[str, forks.Popen] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def follow(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.language == "sh":
                for line in block.text.splitlines():
                    self.run(line)
            elif block.file:
                write(self.folder, block)
            else:
                self.shell(block.text)

    def run(self, line: str) -> str:
        """A command of a page, and what it prints. A server is started."""
        name = next((name for name in SERVERS if name in line.split()), "")
        if line.startswith("pip install "):  # it is installed
            return ""
        if name:
            self._start(name, line)
            return ""
        command, _, folder = line.partition(" && cd ")
        if command.endswith(" createsuperuser"):
            command += " --no-input"  # the account comes from the environment
        ran = self._python(_argv(command))
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
        self.folder /= folder
        return str(ran.stdout + ran.stderr)

    def shell(self, code: str) -> str:
        """In `manage.py shell`."""
        ran = self._python(["manage.py", "shell", "-v", "0"], code)
        assert ran.returncode == 0, ran.stderr
        return str(ran.stdout + ran.stderr)

    def _python(self, argv: list[str], input: str = "") -> subprocess.CompletedProcess[Any]:
        options: Any = {"cwd": self.folder, "env": self.env, "timeout": BOUND_S}
        return forks.run(argv, input=input, capture_output=True, text=True, **options)

    def _start(self, name: str, line: str) -> None:
        variable, is_set, value = line.split()[0].partition("=")
        if is_set:
            assert value == "…"
            self.env[variable] = "key-of-the-test"
        command = line.split()[bool(is_set) :]
        if name in ("runserver", "uvicorn"):
            command += [f"127.0.0.1:{self.port}"] if name == "runserver" else ["--port", str(self.port)]
        if name == "runserver" and not self.reloads:
            command.append("--noreload")
        self.stop(name)
        if name in ("runserver", "uvicorn"):  # a reloader ends before its child has left the port
            assert wait_until(lambda: port_is_free("127.0.0.1", self.port), BOUND_S)
        with self.log(name).open("ab") as log:
            options: Any = {"cwd": self.folder, "env": self.env, "stdout": log, "stderr": log}
            self.processes[name] = forks.Popen(_argv(" ".join(command)), **options)
        if name in ("runserver", "uvicorn"):
            assert wait_until(lambda: not port_is_free("127.0.0.1", self.port), BOUND_S), self.log(name).read_text()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def stop(self, name: str, by: int = signal.SIGINT) -> None:
        """Ctrl-C in its terminal."""
        process = self.processes.pop(name, None)
        if process is not None and process.poll() is None:
            os.killpg(process.pid, by)
            process.wait(seconds(40))

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name)


def _argv(command: str) -> list[str]:
    """What follows `python`: the commands are forks of a process that has imported Django and litellm."""
    program, *arguments = command.split()
    return arguments if program == "python" else ["-m", program.replace("django-admin", "django"), *arguments]
