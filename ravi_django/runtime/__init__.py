"""Django-backed execution. The way in: `engine.py` (one lease of a run), then `store.py` (every write)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Runtime": "ravi_django.runtime.inprocess",
    "asubmit": "ravi_django.runtime.submit",
    "get_agent": "ravi_django.runtime.registry",
    "register": "ravi_django.runtime.registry",
    "submit": "ravi_django.runtime.submit",
}

__all__ = ["Runtime", "asubmit", "get_agent", "register", "submit"]

if TYPE_CHECKING:
    from ravi_django.runtime.inprocess import Runtime
    from ravi_django.runtime.registry import get_agent, register
    from ravi_django.runtime.submit import asubmit, submit


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
