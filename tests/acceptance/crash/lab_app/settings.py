"""The demo site with the laboratory's app, and leases short enough for hundreds of takeovers in minutes."""

import os

from project.settings import *  # noqa: F403
from project.settings import DATABASES as SITE_DATABASES, INSTALLED_APPS as SITE_APPS, RAVI as SITE_RAVI
from tests.acceptance.crash.rig import REPLICA

INSTALLED_APPS = [*(app for app in SITE_APPS if app != "project"), "tests.acceptance.crash.lab_app.apps.LabConfig"]

ROOT_URLCONF = "tests.acceptance.crash.lab_app.urls"

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a real one takes half a second

# A replica that has received nothing since the migration.
DATABASES = {**SITE_DATABASES, "replica": {**SITE_DATABASES["default"], "NAME": REPLICA}}
DATABASE_ROUTERS = ["tests.acceptance.crash.lab_app.router.PrimaryReplicaRouter"]

LEASE_S = float(os.environ.get("CRASH_LEASE_S", "2"))
RAVI = {
    **SITE_RAVI,
    "LIMITS": None,
    "LEASE_S": LEASE_S,
    "HEARTBEAT_S": LEASE_S / 4,
    "SWEEP_S": 0.5,
    "DRAIN_S": 2.0,
    "RETRY_BASE_S": 0.1,
    "TOOL_TIMEOUT_S": 20.0,  # of a signal that comes late, or of a child's whole life
    "MAX_AGENTS": 1000,  # of a tree; those that are planned have limits of their own
    "MAX_TREE": 10_000,
    "MAX_RUNS": int(os.environ.get("CRASH_MAX_RUNS", "8")),
    "MAX_ATTEMPTS": 1000,  # here a run loses its worker for no fault of its own: none is poison
}
CELERY_BEAT_SCHEDULE = {"ravi-sweep": {"task": "ravi.sweep", "schedule": RAVI["SWEEP_S"]}}
