"""Submit runs, register agents, and execute runs.

Read first: `lifecycle/submit.py`, `worker/drive.py` and `journal/append.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Runtime": "ravi_django.engine.worker.worker",
    "asubmit": "ravi_django.runs.lifecycle.submit",
    "get_agent": "ravi_django.runs.catalog.registry",
    "register": "ravi_django.runs.catalog.registry",
    "submit": "ravi_django.runs.lifecycle.submit",
}

__all__ = ["Runtime", "asubmit", "get_agent", "register", "submit"]

if TYPE_CHECKING:
    from ravi_django.engine.worker.worker import Runtime
    from ravi_django.runs.catalog.registry import get_agent, register
    from ravi_django.runs.lifecycle.submit import asubmit, submit


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
