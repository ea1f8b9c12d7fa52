"""Trace three requests through the package: `make walks`, or `python -m tests.walks [FOLDER…]`.

Each request is sent on SQLite to the engine of the same process, once to warm up and once traced, until its last run
has ended and no thread enters anything new. Prints the table of docs/internals/architecture.md: the files and functions
of the package that any thread enters, each name of a file once. Code that runs at import and `ravi_django.testing`
do not count. With folders, such as `people`, it also prints the functions of each of their files.

Needs Python 3.11, where a comprehension is a function: later versions count fewer.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from project.process import wait_until

PACKAGE = f"{Path(__file__).resolve().parents[1] / 'ravi_django'}{os.sep}"
QUIET_S = 0.5  # without a new function: the request has ended
SITE = {"ENGINE": "inline", "LIMITS": None, "SWEEP_S": 3600.0, "HEARTBEAT_S": 600.0, "LEASE_S": 3600.0}  # by the clock

Functions = dict[str, set[str]]  # names by file

_entered: dict[CodeType, None] = {}


def main(folders: Sequence[str]) -> None:
    threading.setprofile(_enter)
    sys.setprofile(_enter)
    directory = tempfile.TemporaryDirectory(prefix="ravi-walks-")
    atexit.register(directory.cleanup)  # after the engine's threads have ended
    os.environ |= {
        "DATABASE_URL": f"sqlite:///{directory.name}/db.sqlite3",
        "DJANGO_SETTINGS_MODULE": "project.settings",
    }
    os.environ.pop("REDIS_URL", None)
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.RAVI = settings.RAVI | SITE
    django.setup()
    call_command("migrate", verbosity=0)
    traced = {name: trace(request) for name, request in requests().items()}
    print(table(traced))
    for name, functions in traced.items():
        for file in sorted(file for file in functions if file.startswith(tuple(folders)) and folders):
            print(f"{name}: {file}: {', '.join(sorted(functions[file]))}")


def _enter(frame: FrameType, event: str, argument: Any) -> None:
    if event == "call":
        _entered[frame.f_code] = None


def trace(request: Callable[[], None]) -> Functions:
    request()
    _wait_until_quiet()
    _entered.clear()
    request()
    _wait_until_quiet()
    functions: Functions = {}
    for code in list(_entered):
        file = code.co_filename.removeprefix(PACKAGE)
        is_function = code.co_flags & CO_NEWLOCALS and code.co_name != "<module>"
        if is_function and file != code.co_filename and not file.startswith("testing/"):
            functions.setdefault(file, set()).add(code.co_name)
    return functions


def _wait_until_quiet() -> None:
    count = -1
    while count != (count := len(_entered)):
        threading.Event().wait(QUIET_S)


def requests() -> dict[str, Callable[[], None]]:
    from django.contrib.auth import get_user_model

    from ravi_django import answer, register, submit, tool
    from ravi_django.agents import ReActAgent
    from ravi_django.kernel import AgentId, ToolUseBlock, TopicId
    from ravi_django.models import HumanRequest, Run
    from ravi_django.social import follow
    from ravi_django.testing import ScriptedModel

    ada, bob = (get_user_model().objects.create_superuser(name, password="secret") for name in ("ada", "bob"))
    topic = TopicId("news", "today")

    @tool(risk="high")
    def send(text: str) -> str:
        """Send a text."""
        return "sent"

    class Publisher:
        id = AgentId("walks", "publisher")

        async def run(self, ctx: Any, inbox: Any) -> str:
            await ctx.emit(topic, {"text": "It rains."})
            return "published"

    call = ToolUseBlock(tool_name="send", arguments={"text": "Hello"}, call_id="c1")
    register(ReActAgent("helper", model=ScriptedModel(["Hello."])))
    register(ReActAgent("clerk", model=ScriptedModel([call, "Sent."]), tools=[send], approvers="staff"))
    register(ReActAgent("reader", model=ScriptedModel(["It rains."])))
    register(Publisher())
    follow("react/reader", topic, user=ada)

    def wait(rows: Any) -> Any:
        assert wait_until(rows.exists, 60.0)
        return rows.get()

    def submitted() -> None:
        wait(Run.objects.filter(id=submit("react/helper", "hi", user=ada).id, status="completed"))

    def approved() -> None:
        run = submit("react/clerk", "hi", user=ada)
        answer(wait(HumanRequest.objects.filter(run=run, status="pending")), "approve", by=bob)
        wait(Run.objects.filter(id=run.id, status="completed"))

    def published() -> None:
        earlier = list(Run.objects.filter(agent="react/reader").values_list("id", flat=True))
        submit("walks/publisher", "go", user=ada)
        wait(Run.objects.filter(agent="react/reader", status="completed").exclude(id__in=earlier))

    return {"submit to end": submitted, "approval": approved, "emit to follower": published}


def table(traced: dict[str, Functions]) -> str:
    """Files and functions of each folder, in Markdown."""
    columns = {name: (Counter[str](), Counter[str]()) for name in traced}
    for name, (files, functions) in columns.items():
        for file, names in traced[name].items():
            for row in (folder_of(file), "all"):
                files[row] += 1
                functions[row] += len(names)
    rows = [*sorted({row for files, _ in columns.values() for row in files} - {"all"}), "all"]
    lines = [f"| folder | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for row in rows:
        cells = [f"{files[row]} / {functions[row]}" if files[row] else "" for files, functions in columns.values()]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def folder_of(file: str) -> str:
    parts = file.split("/")[:-1]
    return f"`{'/'.join(parts)}`" if parts else "single files"


if __name__ == "__main__":
    main(sys.argv[1:])
