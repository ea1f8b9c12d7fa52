"""The demo site with the benchmarks' agents beside its own, and limits that long runs and large trees fit in."""

import os
from typing import Any

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS as DEMO_APPS, RAVI as DEMO_RAVI

INSTALLED_APPS = [*DEMO_APPS, "benchmarks"]

RAVI: dict[str, Any] = {**DEMO_RAVI, "MAX_TOOL_CALLS": 10_000, "MAX_AGENTS": 10_000, "LIMITS": None}
RAVI["FOUR_EYES"] = False  # one person asks and approves
RAVI |= {
    name: float(os.environ[f"BENCH_{name}"])
    for name in ("LEASE_S", "HEARTBEAT_S", "SWEEP_S")
    if f"BENCH_{name}" in os.environ
}
if "BENCH_EVENT_BUS" in os.environ:
    RAVI["EVENT_BUS"] = os.environ["BENCH_EVENT_BUS"]
if "BENCH_POOLED" in os.environ:
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
if "BENCH_BROKER" in os.environ:  # such as amqp://guest:guest@127.0.0.1:5672//
    CELERY_BROKER_URL = os.environ["BENCH_BROKER"]
