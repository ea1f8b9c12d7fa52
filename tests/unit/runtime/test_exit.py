"""A process that ends in the middle of a run gives the run back, whatever its code was about to do."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.support import template

ROOT = Path(__file__).resolve().parents[3]

ENDS = """
import asyncio, atexit, threading, time, django
django.setup()
from django.db import connection
from ravi_django import AgentId, register, submit

class Late:
    id = AgentId("exit", "late")

    async def run(self, ctx, inbox):
        while threading.main_thread().is_alive():  # the process ends
            await asyncio.sleep(0.001)
        await asyncio.to_thread(time.time)  # no executor takes this any more

register(Late())

run = submit("exit/late", "hello")
while run.status != "running":
    time.sleep(0.02)
    run.refresh_from_db()
connection.close()
atexit.register(time.sleep, 0.5)  # a site's own end may take a while
"""


def test_a_run_goes_on_elsewhere_though_its_process_ends_before_its_next_line(tmp_path):
    env = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")}
    database = template.sqlite(tmp_path / "db")
    env |= {"DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": f"sqlite:///{database}"}

    done = subprocess.run([sys.executable, "-c", ENDS], cwd=ROOT, env=env, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        assert connection.execute("SELECT status, lease_owner FROM ravi_run").fetchall() == [("pending", "")]
    assert done.stderr == ""
