"""Hypothesis strategies for the kernel's types."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from ravi_django.kernel import (
    AgentId,
    AgentProgress,
    AgentStep,
    AudioBlock,
    ChatMessage,
    ChatPayload,
    CodeBlock,
    CompletionEvent,
    ControlPayload,
    DataBlock,
    DataPayload,
    DocumentBlock,
    ErrorBlock,
    Event,
    ExecutionBudget,
    GenerationOptions,
    HistoryRetention,
    ImageBlock,
    Message,
    ModelResponse,
    Priority,
    ProgressPayload,
    ReasoningDelta,
    Role,
    SpawnBudget,
    StreamDone,
    Supervision,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ToolCallRequest,
    ToolExecutionResult,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
    TopicId,
    UIResourceBlock,
    UnknownBlock,
    UnknownPayload,
    Usage,
    VideoBlock,
)

text = st.text(st.characters(codec="utf-8"), max_size=20)  # no lone surrogates: they are no JSON
words = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
json_objects = st.dictionaries(text, json_values, max_size=3)
counts = st.integers(0, 10**9)
times = st.datetimes(timezones=st.just(UTC))
parts = st.from_regex(r"[A-Za-z0-9_.:@+-]{1,12}", fullmatch=True)

agent_ids = st.builds(AgentId, parts, parts, st.just("default") | parts)
topic_ids = st.builds(TopicId, parts, parts, st.just("default") | parts)
maybe_text = st.none() | text
maybe_agent = st.none() | agent_ids
usages = st.builds(Usage, input_tokens=counts, cached_tokens=counts, output_tokens=counts, reasoning_tokens=counts)

media = {"url": maybe_text, "data": maybe_text, "mime_type": maybe_text}


@st.composite
def _unknown(draw: st.DrawFn, cls: Any, tag: str) -> Any:
    extra = draw(st.dictionaries(words.filter(lambda key: key != tag), json_values, max_size=3))
    return cls.model_validate({**extra, tag: "x-" + draw(words)})


flat_blocks = {
    "text": st.builds(TextBlock, text=text),
    "code": st.builds(CodeBlock, code=text, language=text),
    "data": st.builds(DataBlock, data=json_values),
    "error": st.builds(ErrorBlock, message=text, error_type=text, details=st.none() | json_objects),
    "image": st.builds(ImageBlock, detail=maybe_text, alt=maybe_text, **media),
    "audio": st.builds(AudioBlock, transcript=maybe_text, **media),
    "video": st.builds(VideoBlock, **media),
    "document": st.builds(DocumentBlock, name=maybe_text, **media),
    "tool_use": st.builds(ToolUseBlock, tool_name=text, arguments=json_objects, call_id=text),
    "thinking": st.builds(ThinkingBlock, text=text, signature=maybe_text),
    "ui_resource": st.builds(UIResourceBlock, uri=text, mime_type=text, text=maybe_text, data=maybe_text),
    "unknown": _unknown(UnknownBlock, "type"),
}


def _tool_results(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[ToolResultBlock]:
    return st.builds(ToolResultBlock, call_id=text, content=st.lists(inner, max_size=3), is_error=st.booleans())


blocks = st.recursive(st.one_of(*flat_blocks.values()), _tool_results, max_leaves=4)
blocks_by_type = {**flat_blocks, "tool_result": _tool_results(blocks)}
block_lists = st.lists(blocks, max_size=3)

chat_messages = st.builds(
    ChatMessage, role=st.sampled_from(Role), content=block_lists, name=maybe_text, metadata=json_objects
)

streamed = {"seq": counts, "agent_id": maybe_agent, "run_id": maybe_text}
progress = st.builds(
    AgentProgress,
    step=st.sampled_from(AgentStep),
    parent_id=maybe_agent,
    depth=st.integers(0, 16),
    content=json_values,
    ts=st.none() | times,
    **streamed,
)
stream_events = st.one_of(
    st.builds(TextDelta, text=text, **streamed),
    st.builds(ReasoningDelta, text=text, **streamed),
    st.builds(CompletionEvent, content=block_lists, usage=usages, **streamed),
    st.builds(StreamDone, reason=text, **streamed),
    progress,
)

payloads = st.one_of(
    st.builds(ChatPayload, message=chat_messages),
    st.builds(DataPayload, data=json_objects),
    st.builds(ControlPayload, signal=text, data=json_objects),
    st.builds(ProgressPayload, progress=progress),
    st.builds(ToolCallRequest, name=text, arguments=json_objects, call_id=text),
    st.builds(ToolExecutionResult, call_id=text, content=block_lists, is_error=st.booleans()),
    _unknown(UnknownPayload, "kind"),
)
messages = st.builds(
    Message,
    id=text,
    target=agent_ids | topic_ids,
    sender=maybe_agent,
    payload=payloads,
    correlation_id=text,
    causation_id=maybe_text,
    reply_to=maybe_text,
    metadata=json_objects,
)

events = st.builds(
    Event, id=text, type=text, source=text, schema_version=counts, correlation_id=text, ts=times, data=json_objects
)

limits = st.none() | st.integers(1, 10**9)
dollars = st.none() | st.floats(0, 1e6, allow_nan=False)
execution_budgets = st.builds(
    ExecutionBudget,
    max_tokens=limits,
    max_cost_usd=dollars,
    max_turns=limits,
    deadline_s=st.none() | st.floats(0.001, 1e6),
    max_agents=limits,
)
spawn_budgets = st.builds(SpawnBudget, max_agents=st.integers(1, 1000), allow_preempt=st.booleans())
supervisions = st.builds(
    Supervision,
    run_id=text,
    session_id=text,
    root_id=agent_ids,
    parent_id=maybe_agent,
    depth=st.integers(0, 16),
    spawn_budget=spawn_budgets,
    execution_budget=execution_budgets,
    retention=st.sampled_from(HistoryRetention),
    priority=st.sampled_from(Priority),
)

tool_specs = st.builds(ToolSpec, name=text, description=text, parameters=json_objects)
fractions = st.none() | st.floats(0, 2, allow_nan=False)
generation_options = st.builds(
    GenerationOptions,
    tools=st.lists(tool_specs, max_size=2),
    tool_choice=maybe_text,
    temperature=fractions,
    top_p=fractions,
    max_tokens=limits,
    stop=st.none() | st.lists(text, max_size=2),
    reasoning_effort=maybe_text,
    response_format=st.none() | json_objects,
    extra=json_objects,
)
model_responses = st.builds(
    ModelResponse, message=chat_messages, usage=usages, cost=dollars, model=text, finish_reason=text
)
