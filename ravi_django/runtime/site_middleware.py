"""RAVI["MIDDLEWARE"]: what is put around every agent's own middlewares."""

from __future__ import annotations

import inspect
import threading
from typing import Any

from django.utils.module_loading import import_string

from ravi_django.agents.middleware import MiddlewarePipeline
from ravi_django.conf import conf
from ravi_django.kernel import InvalidInputError

_made: dict[tuple[str, ...], MiddlewarePipeline] = {}  # one object serves all runs of the process
_lock = threading.Lock()


def around(own: MiddlewarePipeline) -> MiddlewarePipeline:
    """The site's chain outside, the agent's own inside. Raises InvalidInputError for a setting that is none."""
    site = of_site()
    return MiddlewarePipeline([site, own]) if site else own


def of_site() -> MiddlewarePipeline:
    """The setting's middlewares, made once. Raises InvalidInputError that names the one to fix."""
    names = conf.MIDDLEWARE
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"RAVI['MIDDLEWARE'] is a list of dotted names, not {names!r}", field="MIDDLEWARE")
    key = tuple(names)
    with _lock:
        if key not in _made:
            _made[key] = MiddlewarePipeline([_middleware(name) for name in key])
        return _made[key]


def _middleware(name: str) -> Any:
    try:
        found = import_string(name)
        if inspect.isclass(found) or inspect.isfunction(found):
            found = found()
        return MiddlewarePipeline([found])
    except Exception as error:
        raise InvalidInputError(
            f"RAVI['MIDDLEWARE']: {name!r} is no middleware, and makes none: {type(error).__name__}: {error}",
            field="MIDDLEWARE",
        ) from error
