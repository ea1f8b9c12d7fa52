"""For a site's own tests: a model that follows a script, a fake clock, an engine that runs until idle."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "FakeClock": "ravi_django.testing.clock",
    "ScriptedModel": "ravi_django.testing.scripted_model",
    "arun_until_idle": "ravi_django.testing.running",
    "journal_of": "ravi_django.testing.running",
    "registered": "ravi_django.testing.registering",
    "run_until_idle": "ravi_django.testing.running",
    "scripted": "ravi_django.testing.registering",
}

__all__ = ["FakeClock", "ScriptedModel", "arun_until_idle", "journal_of", "registered", "run_until_idle", "scripted"]

if TYPE_CHECKING:
    from ravi_django.testing.clock import FakeClock
    from ravi_django.testing.registering import registered, scripted
    from ravi_django.testing.running import arun_until_idle, journal_of, run_until_idle
    from ravi_django.testing.scripted_model import ScriptedModel


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
