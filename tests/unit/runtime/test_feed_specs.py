"""Agents of a feed that are rows: what their specs say, and that they run."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django import signal, submit
from ravi_django.agents import (
    InformationAgent,
    InMemoryHistoryProvider,
    PersonalFeedAgent,
    ReActAgent,
    rebuild_agent,
    validate_spec,
)
from ravi_django.kernel import InvalidInputError, TopicId
from ravi_django.models import Follow, Publication, Run, Status
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.arriving import logged, publish

pytestmark = pytest.mark.django_db(transaction=True)

NEWS: dict[str, Any] = {
    "kind": "information",
    "model": "rehearsal",
    "system_instructions": "For {{ reader }}.",
    "variables": {"reader": {"default": "children"}},
    "output_topic": "news/tech",
    "source_signal": "came",
    "items_per_generation": 2,
    "options": {"temperature": 0.5},
}
FEED: dict[str, Any] = {"kind": "personal_feed", "follow_topics": ["news/tech"], "preferences": "cats", "every_s": 0}


@pytest.fixture(autouse=True)
def _no_fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world.silence(monkeypatch, "fan_out_hint")


def build(spec: Any, **options: Any) -> Any:
    return rebuild_agent(spec, build_model=lambda name, **_: ScriptedModel("ok", name=name), **options)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": "m", "kind": "news"}, "kind"),
        ({"kind": "information"}, "model"),
        ({"kind": "react"}, "model"),
        ({}, "model"),
        ({**NEWS, "output_topic": "news"}, "output_topic"),
        ({**NEWS, "source_signal": ""}, "source_signal"),
        ({**NEWS, "source_signal": "new_feed_item"}, "source_signal"),
        ({**NEWS, "tool_names": ["calculator"]}, "tool_names"),
        ({**NEWS, "follow_topics": ["a/b"]}, "follow_topics"),
        ({**NEWS, "items_per_generation": 0}, "items_per_generation"),
        ({**FEED, "follow_topics": ["a/b", "a"]}, "follow_topics.1"),
        ({**FEED, "output_topic": "a/b"}, "output_topic"),
        ({**FEED, "every_s": -1}, "every_s"),
        ({**FEED, "preferences": "x" * 4001}, "preferences"),
        ({**FEED, "result_schema": {"type": "object"}}, "result_schema"),
        ({"model": "m", "preferences": "cats"}, "preferences"),
    ],
)
def test_a_fault_is_named_by_its_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate_spec(spec)

    assert caught.value.field == field


def test_a_spec_of_before_is_what_it_was() -> None:
    assert validate_spec({"model": "m"}).to_json() == {"model": "m"}
    assert validate_spec({"model": "m", "kind": "react"}).to_json() == {"model": "m"}


@pytest.mark.parametrize("spec", [NEWS, FEED])
def test_what_a_row_keeps_is_read_again(spec: dict[str, Any]) -> None:
    kept = validate_spec(spec).to_json()

    assert validate_spec(kept).to_json() == kept
    assert kept == {name: value for name, value in spec.items() if value != 0}


def test_a_spec_makes_its_kind_of_agent() -> None:
    news, feed = build(NEWS, memory=InMemoryHistoryProvider()), build(FEED, id="reader/mine")

    assert isinstance(news, InformationAgent) and isinstance(feed, PersonalFeedAgent)
    assert (str(news.id), str(news.output_topic), news.source_signal) == (
        "information/information",
        "news/tech",
        "came",
    )
    assert (news.model.name, news.items_per_generation, news.base_options.temperature) == ("rehearsal", 2, 0.5)
    assert (str(feed.id), feed.model, feed.preferences) == ("reader/mine", None, "cats")
    assert feed.follow_topics == (TopicId("news", "tech"),)


@pytest.mark.parametrize("spec", [{**NEWS, "options": {}, "variables": {}}, FEED, {**FEED, "model": "m"}])
def test_an_agent_is_made_of_what_it_says_of_itself(spec: dict[str, Any]) -> None:
    agent = build(spec, id="reader/mine")

    assert build(agent.spec()).spec() == agent.spec()


def test_a_react_agent_of_a_spec_can_have_a_topic() -> None:
    agent = build({"model": "m", "output_topic": "news/tech"})

    assert isinstance(agent, ReActAgent) and agent.output_topic == TopicId("news", "tech")
    assert build(agent.spec()).output_topic == agent.output_topic


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda: InformationAgent(model=None), "model"),
        (lambda: InformationAgent(model="gpt"), "model"),  # type: ignore[arg-type]
        (lambda: InformationAgent(model=ScriptedModel("x"), output_topic="a"), "output_topic"),
        (lambda: InformationAgent(model=ScriptedModel("x"), source_signal=""), "source_signal"),
        (lambda: InformationAgent(model=ScriptedModel("x"), source_signal="new_feed_item"), "source_signal"),
        (lambda: InformationAgent(model=ScriptedModel("x"), items_per_generation=0), "items_per_generation"),
        (lambda: PersonalFeedAgent(model="gpt"), "model"),  # type: ignore[arg-type]
        (lambda: PersonalFeedAgent(follow_topics="a/b"), "follow_topics"),
        (lambda: PersonalFeedAgent(follow_topics=["a/b", "a b"]), "follow_topics.1"),
        (lambda: PersonalFeedAgent(preferences=["cats"]), "preferences"),  # type: ignore[arg-type]
        (lambda: PersonalFeedAgent(every_s=-1), "every_s"),
    ],
)
def test_a_parameter_that_makes_no_agent_is_named(made: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        made()

    assert caught.value.field == field


def test_rows_run(django_user_model: Any) -> None:
    ann = django_user_model.objects.create_superuser("ann")
    world.save_spec("news/tech", NEWS)
    world.save_spec("reader/mine", FEED)

    news = submit("news/tech", "A story", user=ann, metadata={"variables": {"reader": "adults"}})
    feed = submit("reader/mine", "Begin", user=ann, metadata={"preferences": "dogs"})
    run_until_idle()
    signal(news.id, "came", {"title": "Another"})
    publish(Run.objects.get(id=feed.id), {"title": "Dogs"})
    run_until_idle()

    assert set(Run.objects.values_list("status", flat=True)) == {Status.SUSPENDED}
    assert Publication.objects.filter(topic="news/tech", owner=ann).count() == 2
    assert [found["keep"] for found in logged(feed, "feed.curated")] == [True]
    assert Follow.objects.get().agent == "reader/mine"


def test_a_new_generation_has_the_newest_spec() -> None:
    world.save_spec("reader/mine", {**FEED, "items_per_generation": 1})
    feed = submit("reader/mine", "Begin")
    run_until_idle()

    world.save_spec("reader/mine", {**FEED, "preferences": "dogs"})
    for title in ("Cats", "Dogs"):
        publish(Run.objects.get(id=feed.id), {"title": title})
        run_until_idle()

    assert [found["keep"] for found in logged(feed, "feed.curated")] == [False, True], "the newest one wants dogs"
    assert Run.objects.get(id=feed.id).generation <= 4
