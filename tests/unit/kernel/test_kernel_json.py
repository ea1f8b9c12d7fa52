"""Every kernel type reads back equal from its JSON."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, Field

from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    DataPayload,
    ExecutionBudget,
    GenerationOptions,
    Message,
    PayloadBase,
    RunMeta,
    SpawnBudget,
    Supervision,
    TextBlock,
    ToolResultBlock,
    UnknownBlock,
    UnknownPayload,
    Usage,
    register_payload_type,
    text_of,
)
from ravi_django.kernel.content import BLOCK_TYPES, ContentBlock, blocks_adapter
from tests.support import kernel_strategies as kernel
from tests.support.cases import case

AGENT = AgentId("react", "helper")


def again(value: BaseModel) -> BaseModel:
    """Through real JSON text, as a database or a socket would carry it."""
    return type(value).model_validate(json.loads(value.model_dump_json()))


@register_payload_type
class OrderPayload(PayloadBase):
    kind: Literal["test.order"] = "test.order"
    number: int
    lines: list[str] = Field(default_factory=list)
    blocks: list[ContentBlock] = Field(default_factory=list)


orders = st.builds(OrderPayload, number=kernel.counts, lines=st.lists(kernel.text), blocks=kernel.block_lists)


@pytest.mark.parametrize("kind", [*BLOCK_TYPES, "unknown"])
@given(data=st.data())
@settings(max_examples=25)
def test_block_of_every_type_reads_back_as_its_class(kind: str, data: st.DataObject) -> None:
    block = data.draw(kernel.blocks_by_type[kind])
    (read,) = blocks_adapter.validate_json(blocks_adapter.dump_json([block]))
    assert read == block
    assert type(read) is BLOCK_TYPES.get(kind, UnknownBlock)
    assert isinstance(text_of([block]), str)


@given(kernel.json_objects)
def test_a_block_of_an_unknown_type_is_kept_as_it_came(extra: dict[str, Any]) -> None:
    came = {**extra, "type": "hologram"}
    (block,) = blocks_adapter.validate_python([came])
    assert isinstance(block, UnknownBlock)
    assert block.model_dump(mode="json") == came


@given(kernel.chat_messages)
def test_chat_message_reads_back_equal_with_its_digest(message: ChatMessage) -> None:
    assert again(message) == message
    short = ChatMessage.model_validate(json.loads(json.dumps(message.to_json())))
    assert (short, short.digest) == (message, message.digest)


def test_digest_changes_with_what_is_said() -> None:
    for change in [{"role": "user"}, {"content": [TextBlock(text="b")]}, {"name": "x"}]:
        with case(change):
            message = ChatMessage.of("assistant", "a")
            other = ChatMessage(**{"role": message.role, "content": message.content, **change})
            assert other.digest != message.digest
    assert ChatMessage(role="user", metadata={"a": 1}).digest == ChatMessage(role="user").digest


values = kernel.usages | kernel.stream_events | kernel.events | kernel.execution_budgets | kernel.spawn_budgets


@given(values | kernel.supervisions | kernel.tool_specs | kernel.generation_options | kernel.model_responses)
def test_value_reads_back_equal(value: BaseModel) -> None:
    assert again(value) == value


@given(kernel.messages | orders.map(lambda order: Message(target=AGENT, payload=order)))
def test_message_reads_back_equal_with_its_payloads_own_class(message: Message) -> None:
    read = Message.model_validate_json(message.model_dump_json())
    assert read == message
    assert type(read.payload) is type(message.payload) and type(read.target) is type(message.target)
    assert Message.model_validate_json(message.model_dump_json(exclude_none=True)) == message


def test_payloads_and_targets_of_messages() -> None:
    # payload of an unknown kind is kept as it came
    came = {"kind": "from.the.future", "depth": [1, None], "gone": None}
    message = Message.model_validate({"target": "react/helper", "payload": came})
    assert isinstance(message.payload, UnknownPayload)
    assert json.loads(message.model_dump_json())["payload"] == came
    # is broadcast tells topics from agents
    payload = DataPayload()
    assert Message.model_validate({"target": "topic:news/sport", "payload": payload}).is_broadcast
    assert not Message.model_validate({"target": "news/sport", "payload": payload}).is_broadcast
    # child meta is cancelled with its parent
    meta = RunMeta(run_id="r", trace_id="a")
    child = meta.child(trace_id="b")
    meta.cancellation.cancel("enough")
    assert (child.cancellation.reason, child.trace_id, meta.trace_id) == ("enough", "b", "a")
    # text of a tool result is the text of its blocks
    block = ToolResultBlock(call_id="c", content=[TextBlock(text="a"), TextBlock(text="b")])
    assert text_of([block]) == block.text == "a\nb"


def test_what_cannot_be_a_payload_type_is_refused() -> None:
    # payload kind cannot be taken twice
    class Mine(PayloadBase):
        kind: Literal["data"] = "data"

    with pytest.raises(ValueError, match="belongs to DataPayload already"):
        register_payload_type(Mine)
    assert isinstance(Message(target=AGENT, payload=DataPayload()).payload, DataPayload)
    # payload type must subclass payload base
    for cls in [dict, BaseModel, "DataPayload"]:
        with case(cls), pytest.raises(TypeError, match="must subclass PayloadBase"):
            register_payload_type(cls)

    # payload type needs a literal kind
    class Vague(PayloadBase):
        kind: str = "vague"

    with pytest.raises(TypeError, match="Literal"):
        register_payload_type(Vague)


@given(kernel.usages, kernel.usages)
def test_usage_adds_field_by_field(one: Usage, other: Usage) -> None:
    total = one + other
    assert total.total == one.total + other.total
    assert total.cached_tokens == one.cached_tokens + other.cached_tokens
    assert total.reasoning_tokens == one.reasoning_tokens + other.reasoning_tokens


@given(kernel.generation_options)
def test_options_digest_leaves_out_the_tools(options: GenerationOptions) -> None:
    bare = GenerationOptions.model_validate({**options.model_dump(), "tools": []})
    assert (bare.digest, again(options).tools_digest) == (options.digest, options.tools_digest)


@given(kernel.supervisions)
def test_run_meta_travels_without_its_token(supervision: Supervision) -> None:
    meta = RunMeta(run_id="r", supervision=supervision, trace_id="t", tenant_id="acme")
    read = RunMeta.model_validate_json(meta.model_dump_json())
    assert read.supervision == supervision
    assert (read.run_id, read.trace_id, read.tenant_id) == ("r", "t", "acme")


@pytest.mark.parametrize("make", [
    lambda: ExecutionBudget(max_tokens=0), lambda: ExecutionBudget(deadline_s=-1),
    lambda: ExecutionBudget.model_validate({"max_token": 1}), lambda: SpawnBudget(max_agents=0),
    lambda: GenerationOptions.model_validate({"temprature": 1}),
])  # fmt: skip
def test_impossible_limits_and_misspelt_names_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        make()
