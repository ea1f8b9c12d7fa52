"""Agents of a feed that are rows: what their specs say, and that they run."""

from functools import partial
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

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_fan_out")]

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


def build(spec: Any, **options: Any) -> Any:
    return rebuild_agent(spec, build_model=lambda name, **_: ScriptedModel("ok", name=name), **options)


BAD = {
    "kind": [{"model": "m", "kind": "news"}],
    "model": [{"kind": "information"}, {"kind": "react"}, {}],
    "output_topic": [{**NEWS, "output_topic": "news"}, {**FEED, "output_topic": "a/b"}],
    "source_signal": [{**NEWS, "source_signal": name} for name in ("", "new_feed_item")],
    "tool_names": [{**NEWS, "tool_names": ["calculator"]}],
    "follow_topics": [{**NEWS, "follow_topics": ["a/b"]}],
    "follow_topics.1": [{**FEED, "follow_topics": ["a/b", "a"]}],
    "items_per_generation": [{**NEWS, "items_per_generation": 0}],
    "every_s": [{**FEED, "every_s": -1}],
    "preferences": [{**FEED, "preferences": "x" * 4001}, {"model": "m", "preferences": "cats"}],
    "result_schema": [{**FEED, "result_schema": {"type": "object"}}],
}
NEWSROOM, READER = partial(InformationAgent, model=ScriptedModel("x")), PersonalFeedAgent
BAD_MADE: dict[str, list[Any]] = {
    "model": [partial(InformationAgent, model=model) for model in (None, 7)] + [partial(READER, model=" ")],
    "output_topic": [partial(NEWSROOM, output_topic="a")],
    "source_signal": [partial(NEWSROOM, source_signal=name) for name in ("", "new_feed_item")],
    "items_per_generation": [partial(NEWSROOM, items_per_generation=0)],
    "follow_topics": [partial(READER, follow_topics="a/b")],
    "follow_topics.1": [partial(READER, follow_topics=["a/b", "a b"])],
    "preferences": [partial(READER, preferences=["cats"])],
    "every_s": [partial(READER, every_s=-1)],
}


def test_a_fault_of_a_spec_or_a_parameter_is_named_by_its_field() -> None:
    specs = {field: [partial(validate_spec, spec) for spec in found] for field, found in BAD.items()}
    for table in (specs, BAD_MADE):
        for field, calls in table.items():
            for call in calls:
                with pytest.raises(InvalidInputError) as caught:
                    call()
                assert caught.value.field == field, call
    for spec in ({"model": "m"}, {"model": "m", "kind": "react"}):
        assert validate_spec(spec).to_json() == {"model": "m"}, "as before there were kinds"


@pytest.mark.parametrize("spec", [NEWS, FEED])
def test_what_a_row_keeps_is_read_again(spec: dict[str, Any]) -> None:
    kept = validate_spec(spec).to_json()
    assert validate_spec(kept).to_json() == kept
    assert kept == {name: value for name, value in spec.items() if value != 0}


def test_a_spec_makes_its_kind_of_agent() -> None:
    news, feed = build(NEWS, memory=InMemoryHistoryProvider()), build(FEED, id="reader/mine")
    assert isinstance(news, InformationAgent) and isinstance(feed, PersonalFeedAgent)
    assert (str(news.id), str(news.output_topic)) == ("information/information", "news/tech")
    assert news.source_signal == "came"
    assert (news.model.name, news.items_per_generation, news.base_options.temperature) == ("rehearsal", 2, 0.5)
    assert (str(feed.id), feed.model, feed.preferences) == ("reader/mine", None, "cats")
    assert feed.follow_topics == (TopicId("news", "tech"),)


@pytest.mark.parametrize("spec", [{**NEWS, "options": {}, "variables": {}}, FEED, {**FEED, "model": "m"}])
def test_an_agent_is_made_of_what_it_says_of_itself(spec: dict[str, Any]) -> None:
    agent = build(spec, id="reader/mine")
    assert build(agent.spec()).spec() == agent.spec()
    agent = build({"model": "m", "output_topic": "news/tech"})
    assert isinstance(agent, ReActAgent) and agent.output_topic == TopicId("news", "tech")
    assert build(agent.spec()).output_topic == agent.output_topic


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
