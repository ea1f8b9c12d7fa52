"""Imports are inside: when this is loaded, Django's settings are not there yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import world
from tests.support.patience import BOUND_S


@pytest.fixture
def operator(transactional_db: None) -> Callable[..., Any]:
    """A browser logged in as a member of staff with these permissions, as `view_run`."""
    from tests.support.inbox import logged_in, person

    def log_in(*codenames: str, superuser: bool = False) -> Any:
        return logged_in(person(f"staff-{'-'.join(codenames)}", superuser=superuser, may=codenames))

    return log_in


@pytest.fixture
def root(operator: Callable[..., Any]) -> Any:
    return operator(superuser=True)


@pytest.fixture
def fay(transactional_db: None) -> Any:
    """A member of staff in the finance group."""
    from tests.support.inbox import person

    return person("fay", "finance")


@pytest.fixture
def client(fay: Any) -> Any:
    """fay's browser."""
    from tests.support.inbox import logged_in

    return logged_in(fay)


@pytest.fixture
def driven(transactional_db: None) -> Callable[..., Any]:
    """Drive a run to its end with an agent of this script; returns its row."""
    from asgiref.sync import sync_to_async
    from django.db import connections

    from ravi_django import register, tool
    from ravi_django.agents import ReActAgent, Runtime
    from ravi_django.agents.context import DjangoHistoryProvider
    from ravi_django.agents.memory.agent_context import ContextConfig
    from ravi_django.kernel import RunFailedError, Usage
    from ravi_django.models import Run
    from ravi_django.testing import ScriptedModel

    world.bodies_forget()  # the database is empty again

    @tool
    def echo(text: str) -> str:
        """Say it again."""
        return text

    def drive(
        script: list[Any], text: str = "hi", key: str = "scripted", cost: float | None = 0.0021, **options: Any
    ) -> Run:
        model = ScriptedModel(script, usage=Usage(input_tokens=1200, output_tokens=34), cost=cost)
        agent = register(
            ReActAgent(
                key, model=model, tools=[echo], max_iterations=500, context=ContextConfig(DjangoHistoryProvider())
            )
        )

        async def run() -> str:
            async with Runtime() as runtime:
                found = await runtime.submit(agent.id, text, **options)
                with contextlib.suppress(RunFailedError):
                    await runtime.result(found, timeout=BOUND_S)
                await sync_to_async(connections.close_all)()  # of the thread that submitted
                return found

        return Run.objects.get(id=asyncio.run(run()))

    return drive
