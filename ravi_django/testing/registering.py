"""Agents of one test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from functools import wraps
from typing import Any, TypeVar, cast

from ravi_django.kernel import Agent
from ravi_django.runtime.catalog import registry

F = TypeVar("F", bound=Callable[..., Any])


class registered(ContextDecorator):
    """The agents are registered inside a `with` block or a decorated test, in place of the site's at their addresses.

    The site's registrations are as before at the end, whatever `register` did inside. `access` is as in `register`;
    without it an agent has the access of the one that it replaces.
    """

    def __init__(self, *agents: Agent, access: registry.Access | None = None) -> None:
        self._agents, self._access = agents, access
        self._scopes: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        scope = registry.restored()
        scope.__enter__()
        self._scopes.append(scope)
        try:
            for agent in self._agents:
                earlier = registry._access.get(str(getattr(agent, "id", "")))
                registry.register(agent, access=earlier if self._access is None else self._access, replace=True)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *raised: Any) -> None:
        self._scopes.pop().__exit__(None, None, None)

    def __call__(self, function: F) -> F:
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @wraps(function)
        async def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return cast(F, inside)
