"""Being installed costs a site nothing: no model library, no thread, no connection, no loop before there is work."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import forks, template

ROOT = Path(__file__).resolve().parents[3]

LOOK = """
import asyncio, sys, threading
made = []
new_loop = asyncio.new_event_loop
asyncio.new_event_loop = lambda: made.append(1) or new_loop()

import django
django.setup()
import ravi_django.tasks, ravi_django.testing
from tests.support.world import Engine, get_worker
import ravi_django.agents, ravi_django.capabilities.tools
from django.apps import apps
from django.db import connections

assert apps.is_installed("ravi_django")
print({
    "litellm": any(name.split(".")[0] == "litellm" for name in sys.modules),
    "threads": [thread.name for thread in threading.enumerate()],
    "connections": [one.alias for one in connections.all(initialized_only=True) if one.connection is not None],
    "loops": made,
})
"""


def test_setup_imports_no_model_library_and_makes_no_thread_connection_or_loop(tmp_path):
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}
    env |= {"DATABASE_URL": f"sqlite:///{tmp_path}/db", "REDIS_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run([sys.executable, "-c", LOOK], cwd=ROOT, env=env, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    found = {"litellm": False, "threads": ["MainThread"], "connections": [], "loops": []}
    assert done.stdout.strip() == str(found)
    assert not list(tmp_path.iterdir())


FORK = """
import django, os, sys
django.setup()
from tests.support import world
assert world.current_worker is None
pid = os.fork()
if pid == 0:
    from tests.support.world import close_worker, get_worker
    get_worker()
    close_worker()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_makes_a_worker_of_its_own(tmp_path):
    env = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")}
    database = template.sqlite(tmp_path / "db")
    env |= {"DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": f"sqlite:///{database}"}

    done = forks.run(["-c", FORK], env=env, capture_output=True, text=True)

    assert done.stdout.strip() == "7", done.stderr
