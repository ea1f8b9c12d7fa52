"""What a site's own tests need: a model that follows a script, a clock that obeys, an engine that runs until idle."""

from ravi_django.testing.clock import FakeClock
from ravi_django.testing.running import arun_until_idle, journal_of, run_until_idle
from ravi_django.testing.scripted import ScriptedModel

__all__ = ["FakeClock", "ScriptedModel", "arun_until_idle", "journal_of", "run_until_idle"]
