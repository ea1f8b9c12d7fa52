"""A site whose admin has a theme, as a process: `with themed_site("unfold", folder) as url`.

Its superuser is `root`, with the password `root`. It has rows of each model: what a customer of a long name asks for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from project.process import wait_until
from project.services import free_port
from tests.support import forks, template, world
from tests.support.patience import BOUND_S

CUSTOMER = "kunde.mit.langem.namen@verwaltung.example.com"


@contextmanager
def themed_site(theme: str, folder: Path) -> Iterator[str]:
    log = folder / "site.log"
    port = free_port()
    environment = {
        **os.environ,
        "DATABASE_URL": f"sqlite:///{template.sqlite(folder / 'db.sqlite3')}",
        "DJANGO_SETTINGS_MODULE": "tests.support.themed_settings",
        "RAVI_TEST_THEME": theme,
    }
    environment.pop("REDIS_URL", None)
    with log.open("wb") as out:
        command = ["-m", "tests.support.themed_site", str(port)]
        process = forks.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: "startup complete" in log.read_text() or process.poll() is not None, BOUND_S)
            assert process.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def main(port: int) -> None:
    import uvicorn

    from project.asgi import application

    make_rows()
    uvicorn.run(application, host="127.0.0.1", port=port, access_log=False)


def make_rows() -> None:
    """The newest run has a journal, waits for people, and its newest request is an approval."""
    from django.contrib.auth import get_user_model

    from ravi_django.models import Run, Source
    from tests.acceptance.access.world import make
    from tests.support.inbox import ask
    from tests.support.world import save_spec

    world.replace("DEFAULT_ACCESS", "authenticated")
    root = make().people["root"]
    root.set_password("root")
    root.save()
    spec: dict[str, Any] = {"model": "rehearsal", "tool_names": ["calculator"], "variables": {"tone": {"default": "x"}}}
    for text in ("You help.", "You help {{ tone }}."):
        save_spec("aid/orders", {**spec, "system_instructions": text}, by=root)
    Source.objects.create(name="Hook", kind="webhook", agent="aid/orders", owner=root)
    Source.objects.update(enabled=False)  # nothing is fetched
    run_id = asyncio.run(_talk(get_user_model().objects.create_user(CUSTOMER)))
    Run.objects.filter(id=run_id).update(status="suspended")
    run = Run.objects.get(id=run_id)
    ask("question", to="staff", run=run, text="Which colour? " * 20, choices=["red", "blue"])
    for _ in range(2):
        ask(to="staff", run=run, tool="refund_order", arguments={"iban": "DE89" * 9, "amount": 84})


async def _talk(user: Any) -> str:
    """A run with calls of a model and a tool."""
    from ravi_django import register, tool
    from ravi_django.agents import ReActAgent, Runtime
    from ravi_django.kernel import ToolUseBlock
    from ravi_django.testing import ScriptedModel

    @tool
    def echo(text: str) -> str:
        """Say it again."""
        return text

    call = ToolUseBlock(tool_name="echo", arguments={"text": "one " * 60}, call_id="1")
    agent = register(ReActAgent("talker", model=ScriptedModel([call, "It is done. " * 30]), tools=[echo]))
    async with Runtime() as runtime:
        run_id = await runtime.submit(agent.id, "Do it", user=user)
        await runtime.result(run_id, timeout=BOUND_S)
        return run_id


if __name__ == "__main__":
    main(int(sys.argv[1]))
