"""Agents of one test, and scripts for the models of agents."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, ContextDecorator
from copy import copy
from functools import wraps
from typing import Any

from ravi_django.kernel import Agent, InvalidInputError
from ravi_django.runs.catalog import registry
from ravi_django.testing.scripted_model import ScriptedModel, ScriptItem


class _OfATest(ContextDecorator):
    """Decorates async functions too."""

    def __call__(self, test: Any) -> Any:
        if not inspect.iscoroutinefunction(test):
            return super().__call__(test)

        @wraps(test)
        async def inside(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():  # type: ignore[attr-defined]
                return await test(*args, **kwargs)

        return inside


class registered(_OfATest):
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


class scripted(_OfATest):
    """Inside the `with` block the agent that code has registered under this address has a ScriptedModel.

        with scripted("react/helper", ["It has left."]) as model:
            ...
        self.assertEqual(len(model.calls), 1)

    Takes a ScriptedModel, or the arguments of one. It also decorates a test, sync or async, and the tests of a class.
    Raises AgentNotFoundError for an unknown address, and InvalidInputError for an agent without a model.
    """

    def __init__(self, agent: Any, script: ScriptedModel | Sequence[ScriptItem] | str, **options: Any) -> None:
        self._arguments = agent, script, options

    def __enter__(self) -> ScriptedModel:
        agent, script, options = self._arguments
        self._agent: Any = registry.get_agent(getattr(agent, "id", agent))
        if not hasattr(self._agent, "model"):
            raise InvalidInputError(f"agent {self._agent.id} has no model: script the agents that it calls")
        model, self._before = script, self._agent.model
        if not isinstance(model, ScriptedModel):
            model = ScriptedModel(model, **options)
        registry.set_model(self._agent, model)
        return model

    def __exit__(self, *error: object) -> None:
        registry.set_model(self._agent, self._before)

    def _recreate_cm(self) -> scripted:
        """For each call of a decorated function."""
        return copy(self)

    def __call__(self, test: Any) -> Any:
        if isinstance(test, type):
            for name in [name for name in dir(test) if name.startswith("test")]:
                setattr(test, name, self(getattr(test, name)))
            return test
        return super().__call__(test)
