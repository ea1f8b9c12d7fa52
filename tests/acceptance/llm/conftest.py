"""Imports are inside: when this is loaded, Django's settings are not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import world
from tests.support.patience import BOUND_S


@pytest.fixture
def root(transactional_db: None) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.create_user("root", is_staff=True, is_superuser=True)


@pytest.fixture
def web(root: Any) -> Any:
    """A superuser's REST client."""
    from rest_framework.test import APIClient

    client = APIClient()
    client.force_authenticate(root)
    return client


@pytest.fixture
def browser(root: Any) -> Any:
    """The same person in the admin."""
    from django.test import Client

    client = Client()
    client.force_login(root)
    return client


@pytest.fixture
def agent(transactional_db: None) -> Iterator[Callable[[Any], str]]:
    """Register the agent react/told with this model; returns its address."""
    from ravi_django import register
    from ravi_django.agents import ReActAgent
    from ravi_django.agents.context import DjangoHistoryProvider
    from ravi_django.agents.memory.agent_context import ContextConfig
    from tests.support.world import forget_readers

    world.bodies_forget()

    def make(model: Any) -> str:
        told = ReActAgent("told", model=model, context=ContextConfig(DjangoHistoryProvider()))
        return str(register(told).id)

    yield make
    forget_readers(close=True)


@pytest.fixture
def drive() -> Callable[[str], None]:
    """Let a run come to its end, in this process."""
    import contextlib

    from ravi_django.calls.llm import close_clients
    from ravi_django.kernel import RunFailedError
    from tests.support.world import Runtime

    def until_the_end(run_id: str) -> None:
        async def main() -> None:
            async with Runtime() as runtime:
                with contextlib.suppress(RunFailedError):
                    await runtime.result(run_id, timeout=BOUND_S)
                await close_clients()

        asyncio.run(main())

    return until_the_end
