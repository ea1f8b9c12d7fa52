from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from ravi_django import register, submit
from ravi_django.agents import ReActAgent
from ravi_django.kernel import InvalidInputError, NotFoundError, TopicId, progress_topic, stream_topic
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.django_db(transaction=True)


def frames_of(found: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [frame async for frame in found]

    return asyncio.run(asyncio.wait_for(collect(), BOUND_S))


@pytest.fixture
def owner() -> Any:
    return get_user_model().objects.create_user("owner")


@pytest.fixture
def run(owner: Any) -> Any:
    agent = register(ReActAgent("topical", model=ScriptedModel("hello there")))
    run = submit(agent, "hi", user=owner)
    run_until_idle()
    return run


def test_a_stream_has_its_agents_tokens_alone_and_progress_the_steps_of_the_tree(run: Any, owner: Any) -> None:
    topic = stream_topic(ReActAgent("topical", model=ScriptedModel("")).id)

    found = frames_of(world.follow_topic(topic, user=owner, run=run.id))
    assert [frame["type"] for frame in found] == ["text.delta", "completion", "stream.done"]
    found = frames_of(world.follow_topic(progress_topic(str(run.id)), user=owner))
    assert [frame.get("step") for frame in found] == ["started", "thinking", "done", None]
    found = frames_of(world.follow_topic(TopicId("agent.stream", "other"), user=owner, run=run.id))
    assert [frame["type"] for frame in found] == ["stream.done"], "another agent's is empty"
    with pytest.raises(InvalidInputError, match="topic must be"):
        frames_of(world.follow_topic(TopicId("news", "x"), user=owner))


@pytest.mark.parametrize("kind", ["agent.stream", "agent.progress"])
def test_nobody_subscribes_to_somebody_elses_run(run: Any, kind: str) -> None:
    stranger = get_user_model().objects.create_user("stranger")
    topic = TopicId(kind, str(run.id) if kind == "agent.progress" else "topical")

    with pytest.raises(NotFoundError):
        frames_of(world.follow_topic(topic, user=stranger, run=run.id))
