"""For a site's own tests: a model that follows a script, a fake clock, an engine that runs until idle."""

from typing import TYPE_CHECKING

from ravi_django.wing import public

_EXPORTS = {
    "testing.clock": "FakeClock",
    "testing.scripted_model": "ScriptedModel",
    "testing.running": "arun_until_idle journal_of run_until_idle",
    "testing.registering": "registered scripted",
}

__all__ = ["FakeClock", "ScriptedModel", "arun_until_idle", "journal_of", "registered", "run_until_idle", "scripted"]

if TYPE_CHECKING:
    from ravi_django.testing.clock import FakeClock
    from ravi_django.testing.registering import registered, scripted
    from ravi_django.testing.running import arun_until_idle, journal_of, run_until_idle
    from ravi_django.testing.scripted_model import ScriptedModel

__getattr__ = public(__name__, _EXPORTS)
