"""Imports are inside: when this is loaded, Django's settings are not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import world

if TYPE_CHECKING:
    from live_site import PacedModel

    from ravi_django.models import Run


@pytest.fixture
def paced() -> Iterator[PacedModel]:
    """The model of the agent react/paced."""
    from live_site import PacedModel

    from ravi_django import register
    from ravi_django.agents import ReActAgent
    from ravi_django.agents.context import DjangoHistoryProvider
    from ravi_django.agents.memory.agent_context import ContextConfig

    model = PacedModel([f"w{number} " for number in range(12)])
    register(ReActAgent("paced", model=model, context=ContextConfig(DjangoHistoryProvider())))
    yield model
    model.let_all()


@pytest.fixture
def thinker() -> str:
    """The address of an agent whose model reasons, and calls a tool."""
    from live_site import ThinkingModel

    from ravi_django import register
    from ravi_django.agents import ReActAgent
    from ravi_django.capabilities.tools import CalculatorTool

    agent = register(ReActAgent("thinker", model=ThinkingModel(), tools=[CalculatorTool()]))
    return str(agent.id)


@pytest.fixture
def demo(transactional_db: None) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.create_user("demo")  # no password: hashing one is slow


@pytest.fixture
def stranger(transactional_db: None) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.create_user("stranger")


@pytest.fixture
def worker(transactional_db: None, settings: Any) -> Iterator[Any]:
    """Drives whatever is submitted, in this process."""
    from tests.support.world import close_worker, forget_readers, get_worker

    settings.RAVI = {**settings.RAVI, "ENGINE": "inline", "HEARTBEAT_S": 0.2, "LEASE_S": 5.0}
    yield get_worker()
    close_worker()
    forget_readers(close=True)


@pytest.fixture
def ticket() -> Callable[[Any], str]:
    return lambda user: world.tickets_issue(user)[0]


@pytest.fixture
def cookie() -> Callable[[Any], str]:
    """The Cookie header of a logged-in browser."""
    from django.test import Client

    def log_in(user: Any) -> str:
        client = Client()
        client.force_login(user)
        return f"sessionid={client.cookies['sessionid'].value}"

    return log_in


@pytest.fixture
def submitted(demo: Any) -> Callable[..., Run]:
    """A run that nobody drives, unless there is a worker."""
    from tests.support.world import submit_once

    def submit(agent: str = "react/assistant", text: str = "hi", send: Any = None, **options: Any) -> Run:
        return submit_once(agent, text, **{"user": demo, **options}, send=send)[0]

    return submit


@pytest.fixture
def run(submitted: Callable[..., Run]) -> Run:
    """A run of demo that nobody drives."""
    return submitted(send=lambda run_id: None)


@pytest.fixture
def chat_of(server: Any, worker: Any, new_page: Callable[..., Any]) -> Callable[..., Any]:
    """`chat_of(user, session="", **context)`: the chat page, with that user logged in."""

    def opened(user: Any, session: str = "", **options: Any) -> Any:
        page = new_page(server.url, user, **options)
        page.goto(f"/ravi/ui/chat/{session}/" if session else "/")
        return page

    return opened


@pytest.fixture
def asking() -> Callable[..., str]:
    """Register an agent that asks one question; its address."""

    def register_asking(*args: Any, **options: Any) -> str:
        from ravi_django import register
        from tests.support.runs import CodeAgent

        async def story(ctx: Any, inbox: Any) -> Any:
            told = await ctx.ask_human(*args, **options)
            return f"{told['action']}: {told['text']}"

        return str(register(CodeAgent(story, key="browser-asks"), replace=True).id)

    return register_asking
