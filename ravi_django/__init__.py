"""Durable LLM agents for Django. The names that a site uses are here; they load what they need when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "answer": "ravi_django.runtime.people.answers",
    "emit": "ravi_django.runtime.social.publications",
    "follow": "ravi_django.runtime.social.follows",
    "unfollow": "ravi_django.runtime.social.follows",
    "tool": "ravi_django.agents.tools.function_tool",
    "register": "ravi_django.runtime.catalog.registry",
    "register_source_adapter": "ravi_django.capabilities.feeds.adapter",
    "register_tool": "ravi_django.runtime.catalog.registry",
    "save_spec": "ravi_django.runtime.catalog.specs",
    "run_sync": "ravi_django.runtime.engine.run_sync",
    "submit": "ravi_django.runtime.lifecycle.submit",
    "asubmit": "ravi_django.runtime.lifecycle.submit",
    "schedule": "ravi_django.runtime.schedules.schedules",
    "signal": "ravi_django.runtime.runs.signals",
}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:
    from ravi_django.agents.tools.function_tool import tool as tool
    from ravi_django.capabilities.feeds.adapter import register_source_adapter as register_source_adapter
    from ravi_django.runtime.catalog.registry import register as register, register_tool as register_tool
    from ravi_django.runtime.catalog.specs import save_spec as save_spec
    from ravi_django.runtime.engine.run_sync import run_sync as run_sync
    from ravi_django.runtime.lifecycle.submit import asubmit as asubmit, submit as submit
    from ravi_django.runtime.people.answers import answer as answer
    from ravi_django.runtime.runs.signals import signal as signal
    from ravi_django.runtime.schedules.schedules import schedule as schedule
    from ravi_django.runtime.social.follows import follow as follow, unfollow as unfollow
    from ravi_django.runtime.social.publications import emit as emit


def __getattr__(name: str) -> Any:
    try:
        return getattr(import_module(_EXPORTS[name]), name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
