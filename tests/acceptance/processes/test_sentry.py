"""Sentry's SDK reports failed tools and runs without a setting. A process of its own: the SDK patches its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import template
from tests.support.patience import BOUND_S
from tests.support.site_process import ROOT

pytestmark = pytest.mark.full
PROGRAM = """
import json
import sentry_sdk
from sentry_sdk.transport import Transport

events = []

class InMemory(Transport):
    def capture_envelope(self, envelope):
        events.extend(item.payload.json for item in envelope.items if item.headers["type"] == "event")

sentry_sdk.init("https://key@sentry.invalid/1", transport=InMemory, include_local_variables=False)

import django
django.setup()
from django.conf import settings
settings.RAVI = {**settings.RAVI, "ENGINE": "manual"}
from ravi_django import register, submit, tool
from ravi_django.kernel import AgentId
from ravi_django.testing import run_until_idle

@tool
def look(part: str) -> str:
    "Look."
    secret = "sk-" + "local"
    raise LookupError("no such part")

class Desk:
    id, tools, model = AgentId("test", "desk"), [look], None

    async def run(self, ctx, inbox):
        await ctx.tool("look", part="a")
        raise KeyError("order")

register(Desk())
run = submit("test/desk", "hi")
run_until_idle()
print(json.dumps([str(run.id), events]))
"""


def test_sentry_reports_a_failed_tool_and_a_failed_run_without_a_setting(tmp_path: Path) -> None:
    database = f"sqlite:///{template.sqlite(tmp_path / 'db.sqlite3')}"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": database, "RAVI_MODEL": ""}
    env.pop("REDIS_URL", None)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True, timeout=BOUND_S
    )

    assert done.returncode == 0, done.stderr
    run_id, events = json.loads(done.stdout.splitlines()[-1])
    raised = {event["logger"]: event["exception"]["values"][-1] for event in events}
    assert {name: error["type"] for name, error in raised.items()} == {
        "ravi.tools": "LookupError",
        "ravi.runs": "KeyError",
    }
    assert [error["stacktrace"]["frames"][-1]["function"] for error in raised.values()] == ["look", "run"]
    assert all((event["extra"]["run"], event["extra"]["agent"]) == (run_id, "test/desk") for event in events)
    assert "sk-local" not in done.stdout
