import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from ravi_django.kernel import AgentId, InvalidInputError, TopicId
from tests.support import kernel_strategies as kernel

targets: TypeAdapter[TopicId | AgentId] = TypeAdapter(TopicId | AgentId)


@given(kernel.agent_ids)
def test_agent_id_parses_from_its_text(agent: AgentId) -> None:
    assert AgentId.parse(str(agent)) == agent


@given(kernel.topic_ids)
def test_topic_id_parses_from_its_text(topic: TopicId) -> None:
    assert TopicId.parse(str(topic)) == topic


@given(kernel.agent_ids | kernel.topic_ids)
def test_target_reads_back_as_the_class_it_was(target: AgentId | TopicId) -> None:
    read = targets.validate_json(targets.dump_json(target))

    assert read == target
    assert type(read) is type(target)


def test_text_leaves_out_the_default_namespace() -> None:
    assert str(AgentId("react", "helper")) == "react/helper"
    assert str(AgentId("react", "helper", "acme")) == "acme/react/helper"
    assert str(TopicId("news")) == "news/default"


@pytest.mark.parametrize("text", ["", "react", "a/b/c/d", "/b", "a/", "a b/c", "a/ü", "a/b\n", "x" * 101 + "/b"])
def test_bad_address_is_refused_with_the_form_that_is_wanted(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"looks like type/key|must be 1 to 100"):
        AgentId.parse(text)


@pytest.mark.parametrize("field", ["type", "key", "namespace"])
def test_bad_part_is_named(field: str) -> None:
    parts = {"type": "react", "key": "helper", "namespace": "default", field: "not allowed"}

    with pytest.raises(InvalidInputError) as caught:
        AgentId(**parts)

    assert caught.value.field == field


@given(st.none() | st.integers() | st.lists(st.text(), max_size=2))
def test_what_is_no_text_is_no_address(value: object) -> None:
    with pytest.raises(InvalidInputError):
        AgentId.parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["topic:news/sport", 7, "nothing"])
def test_agent_field_takes_agents_alone(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(AgentId).validate_python(value)


def test_addresses_are_values() -> None:
    agent = AgentId("react", "helper")

    assert len({agent, AgentId("react", "helper"), TopicId("react", "helper")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        agent.key = "other"  # type: ignore[misc]
