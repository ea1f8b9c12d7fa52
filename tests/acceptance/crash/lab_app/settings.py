"""The demo site with the laboratory's app, and leases short enough for hundreds of takeovers in minutes."""

import os

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as SITE_APPS
from project.settings import RAVI as SITE_RAVI

INSTALLED_APPS = [*(app for app in SITE_APPS if app != "project"), "tests.acceptance.crash.lab_app.apps.LabConfig"]

ROOT_URLCONF = "tests.acceptance.crash.lab_app.urls"

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a real one takes half a second
RAVI = {
    **SITE_RAVI,
    "LEASE_S": 2.0,
    "HEARTBEAT_S": 0.5,
    "SWEEP_S": 0.5,
    "DRAIN_S": 2.0,
    "RETRY_BASE_S": 0.1,
    "TOOL_TIMEOUT_S": 20.0,  # of a signal that comes late, or of a child's whole life
    "MAX_AGENTS": 1000,  # of a tree; those that are planned have limits of their own
    "MAX_RUNS": int(os.environ.get("CRASH_MAX_RUNS", "8")),
    "MAX_ATTEMPTS": 1000,  # here a run loses its worker for no fault of its own: none is poison
}
CELERY_BEAT_SCHEDULE = {"ravi-sweep": {"task": "ravi.sweep", "schedule": RAVI["SWEEP_S"]}}
