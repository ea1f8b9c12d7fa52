"""Without a broker, the engine runs inside the site's server: `runserver` starts it with the process, another server
with its first request. Must survive: a reload or Ctrl-C in the middle of a run, and a site that is not migrated yet.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_started
from django.db import DatabaseError, connections

from ravi_django.calls.llm import warm
from ravi_django.conf import conf, in_tests, is_runserver
from ravi_django.engine.db import clock
from ravi_django.engine.worker.worker import get_worker, start_line
from ravi_django.models import Run, Status
from ravi_django.runs import workers
from ravi_django.runs.catalog import agent_models

log = logging.getLogger("ravi.worker")

LOOK_S = 1.0  # between two looks for the tables
QUIET_S = 5.0  # under autoreload litellm is imported once the code has rested for this long: it takes seconds

_begun = threading.Lock()  # held from the first start on


def start_with_server() -> None:
    """Call it from AppConfig.ready."""
    if is_runserver():
        threading.Thread(target=_start_when_ready, name="ravi-start", daemon=True).start()
    elif sys.argv[1:2] != ["runserver"]:  # not the parent of autoreload, which serves nothing
        request_started.connect(_on_request, dispatch_uid="ravi.start")


def _on_request(sender: Any, **kwargs: Any) -> None:
    is_server = isinstance(sender, type) and issubclass(sender, WSGIHandler | ASGIHandler)  # not a test client
    if is_server and not in_tests():
        request_started.disconnect(dispatch_uid="ravi.start")
        if conf.ENGINE == "inline":
            threading.Thread(target=_start_when_ready, name="ravi-start", daemon=True).start()


def _start_when_ready() -> None:
    """Start the worker once the apps are loaded and the tables exist."""
    apps.ready_event.wait()
    if conf.ENGINE != "inline" or not _begun.acquire(blocking=False):
        return
    while not _has_tables():
        time.sleep(LOOK_S)
    if is_runserver():
        _expire_leases_of_dead_processes()
    line = start_line(get_worker().engine)
    if not is_runserver():
        line += "; it starts with the first request: manage.py ravi_worker executes runs without one"
    is_development = is_runserver() or settings.DEBUG  # whose log shows no INFO of this app
    sys.stderr.write(f"{line}\n") if is_development else log.info("%s", line, extra={"action": "worker.start"})
    agent_models.log_errors()
    if os.environ.get("RUN_MAIN") == "true":
        time.sleep(QUIET_S)
    try:
        if agent_models.uses_litellm():
            warm()
    finally:
        connections.close_all()  # this thread's


def _expire_leases_of_dead_processes() -> None:
    """At Ctrl-C autoreload's parent kills this process after a quarter of a second, which may be too early for it to
    release its leases. The next one on this machine does not wait for their end."""
    try:
        here = f"{socket.gethostname()}:"
        leased = Run.objects.filter(status=Status.RUNNING, lease_owner__startswith=here)
        owners = leased.exclude(lease_owner=get_worker().engine.name).order_by().values_list("lease_owner", flat=True)
        earlier = f"{here}{os.getpid()}:"  # a container counts its processes anew when it restarts
        dead = [name for name in owners.distinct() if name.startswith(earlier) or not workers.is_running(name)]
        leased.filter(lease_owner__in=dead).update(lease_expires_at=clock.after(-1))
    finally:
        connections.close_all()


def _has_tables() -> bool:
    try:
        Run.objects.exists()
    except DatabaseError:  # not migrated, or away
        return False
    finally:
        connections.close_all()
    return True
