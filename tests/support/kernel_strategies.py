"""Hypothesis strategies for the kernel's types."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from ravi_django import kernel

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

agent_ids = st.builds(kernel.AgentId, parts, parts, st.just("default") | parts)
topic_ids = st.builds(kernel.TopicId, parts, parts, st.just("default") | parts)
maybe_text = st.none() | text
maybe_agent = st.none() | agent_ids
usages = st.builds(
    kernel.Usage, input_tokens=counts, cached_tokens=counts, output_tokens=counts, reasoning_tokens=counts
)

media = {"url": maybe_text, "data": maybe_text, "mime_type": maybe_text}


@st.composite
def _unknown(draw: st.DrawFn, cls: Any, tag: str) -> Any:
    extra = draw(st.dictionaries(words.filter(lambda key: key != tag), json_values, max_size=3))
    return cls.model_validate({**extra, tag: "x-" + draw(words)})


flat_blocks = {
    "text": st.builds(kernel.TextBlock, text=text),
    "code": st.builds(kernel.CodeBlock, code=text, language=text),
    "data": st.builds(kernel.DataBlock, data=json_values),
    "error": st.builds(kernel.ErrorBlock, message=text, error_type=text, details=st.none() | json_objects),
    "image": st.builds(kernel.ImageBlock, detail=maybe_text, alt=maybe_text, **media),
    "audio": st.builds(kernel.AudioBlock, transcript=maybe_text, **media),
    "video": st.builds(kernel.VideoBlock, **media),
    "document": st.builds(kernel.DocumentBlock, name=maybe_text, **media),
    "tool_use": st.builds(kernel.ToolUseBlock, tool_name=text, arguments=json_objects, call_id=text),
    "thinking": st.builds(kernel.ThinkingBlock, text=text, signature=maybe_text),
    "ui_resource": st.builds(kernel.UIResourceBlock, uri=text, mime_type=text, text=maybe_text, data=maybe_text),
    "unknown": _unknown(kernel.UnknownBlock, "type"),
}


def _tool_results(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[kernel.ToolResultBlock]:
    return st.builds(kernel.ToolResultBlock, call_id=text, content=st.lists(inner, max_size=3), is_error=st.booleans())


blocks = st.recursive(st.one_of(*flat_blocks.values()), _tool_results, max_leaves=4)
blocks_by_type = {**flat_blocks, "tool_result": _tool_results(blocks)}
block_lists = st.lists(blocks, max_size=3)

chat_messages = st.builds(
    kernel.ChatMessage, role=st.sampled_from(kernel.Role), content=block_lists, name=maybe_text, metadata=json_objects
)

streamed = {"seq": counts, "agent_id": maybe_agent, "run_id": maybe_text}
progress = st.builds(
    kernel.AgentProgress,
    step=st.sampled_from(kernel.AgentStep),
    parent_id=maybe_agent,
    depth=st.integers(0, 16),
    content=json_values,
    ts=st.none() | times,
    **streamed,
)
stream_events = st.one_of(
    st.builds(kernel.TextDelta, text=text, **streamed),
    st.builds(kernel.ReasoningDelta, text=text, **streamed),
    st.builds(kernel.CompletionEvent, content=block_lists, usage=usages, **streamed),
    st.builds(kernel.StreamDone, reason=text, **streamed),
    progress,
)

payloads = st.one_of(
    st.builds(kernel.ChatPayload, message=chat_messages),
    st.builds(kernel.DataPayload, data=json_objects),
    st.builds(kernel.ControlPayload, signal=text, data=json_objects),
    st.builds(kernel.ProgressPayload, progress=progress),
    st.builds(kernel.ToolCallRequest, name=text, arguments=json_objects, call_id=text),
    st.builds(kernel.ToolExecutionResult, call_id=text, content=block_lists, is_error=st.booleans()),
    _unknown(kernel.UnknownPayload, "kind"),
)
messages = st.builds(
    kernel.Message,
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
    kernel.Event,
    id=text,
    type=text,
    source=text,
    schema_version=counts,
    correlation_id=text,
    ts=times,
    data=json_objects,
)

limits = st.none() | st.integers(1, 10**9)
dollars = st.none() | st.floats(0, 1e6, allow_nan=False)
execution_budgets = st.builds(
    kernel.ExecutionBudget,
    max_tokens=limits,
    max_cost_usd=dollars,
    max_turns=limits,
    deadline_s=st.none() | st.floats(0.001, 1e6),
    max_agents=limits,
)
spawn_budgets = st.builds(kernel.SpawnBudget, max_agents=st.integers(1, 1000), allow_preempt=st.booleans())
supervisions = st.builds(
    kernel.Supervision,
    run_id=text,
    session_id=text,
    root_id=agent_ids,
    parent_id=maybe_agent,
    depth=st.integers(0, 16),
    spawn_budget=spawn_budgets,
    execution_budget=execution_budgets,
    retention=st.sampled_from(kernel.HistoryRetention),
    priority=st.sampled_from(kernel.Priority),
)

tool_specs = st.builds(kernel.ToolSpec, name=text, description=text, parameters=json_objects)
fractions = st.none() | st.floats(0, 2, allow_nan=False)
generation_options = st.builds(
    kernel.GenerationOptions,
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
    kernel.ModelResponse, message=chat_messages, usage=usages, cost=dollars, model=text, finish_reason=text
)
