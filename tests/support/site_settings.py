"""The demo site with short leases and sweeps, so that tests of takeovers take seconds."""

import os

from project.settings import *  # noqa: F403
from project.settings import RAVI as SITE_RAVI

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a real one takes half a second
MEDIA_ROOT = os.environ.get("SITE_MEDIA") or MEDIA_ROOT  # noqa: F405
RAVI = {
    **SITE_RAVI,
    "LIMITS": None,
    "LEASE_S": 3.0,
    "HEARTBEAT_S": 0.5,
    "SWEEP_S": 0.5,
    "DRAIN_S": 3.0,
    "RETRY_BASE_S": 0.1,
    "MAX_RUNS": int(os.environ.get("SITE_MAX_RUNS", "500")),
    "FAN_OUT_BATCH": int(os.environ.get("SITE_FAN_OUT_BATCH", "5000")),
}
CELERY_BEAT_SCHEDULE = {"ravi-sweep": {"task": "ravi.sweep", "schedule": RAVI["SWEEP_S"]}}
