"""Submit runs, register agents, and execute runs.

Read first: `lifecycle/submit.py`, `worker/drive.py` and `journal/append.py`.
"""

from typing import TYPE_CHECKING

from ravi_django.wing import public

_EXPORTS = {
    "engine.worker.worker": "Runtime",
    "runs.lifecycle.submit": "asubmit submit",
    "runs.catalog.registry": "get_agent register",
}

__all__ = ["Runtime", "asubmit", "get_agent", "register", "submit"]

if TYPE_CHECKING:
    from ravi_django.engine.worker.worker import Runtime
    from ravi_django.runs.catalog.registry import get_agent, register
    from ravi_django.runs.lifecycle.submit import asubmit, submit

__getattr__ = public(__name__, _EXPORTS)
