"""Properties of a model from litellm's list: its context window, its tokens, whether it supports a schema.

litellm's own functions call local model servers and fetch images over the network; these read only its list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ravi_django.agents.memory.compaction.tokens import BYTES_A_TOKEN
from ravi_django.calls.llm.wire import WireMessage, to_wire
from ravi_django.kernel.chat import ChatMessage

REPLY_TOKENS = 3  # added to every request by the chat format
FILE_TOKENS = 1_500  # estimate for a document or a recording: only the provider can count them
_MAKERS = {"vertex_ai-mistral_models": "mistral", "vertex_ai-deepseek_models": "deepseek"}  # of models at Vertex
_AT_ONCE = 20_000  # characters; more are counted in a thread


def listed(litellm: Any, model: str) -> Mapping[str, Any]:
    """The model's entry in litellm's list, or an empty dict."""
    for name in (model, model.partition("/")[2]):
        if entry := litellm.model_cost.get(name):
            return dict(entry)
    return {}


def window(litellm: Any, model: str) -> int | None:
    """The maximum of input tokens; None if unknown."""
    entry = listed(litellm, model)
    tokens = entry.get("max_input_tokens") or entry.get("max_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def supports_schema(litellm: Any, model: str) -> bool:
    if listed(litellm, model).get("supports_response_schema"):
        return True
    try:
        _, provider, *_ = litellm.get_llm_provider(model=model)
    except Exception:  # the name has no known provider
        return False
    if provider.startswith("ollama"):  # litellm would call its server
        return False
    return bool(litellm.supports_response_schema(model=model, custom_llm_provider=provider))


def supports_schema_beside_tools(litellm: Any, model: str, family: str) -> bool:
    """Gemini refuses the pair. Of an older Claude litellm asks for the schema by a tool that it has to call at once."""
    if family == "anthropic":
        return bool(listed(litellm, model).get("supports_native_structured_output"))
    return family != "gemini"


def accepts_images(litellm: Any, model: str) -> bool:
    """Whether the model accepts images; True if unknown."""
    entry = listed(litellm, model)
    return not entry or bool(entry.get("supports_vision"))


def accepts_video(litellm: Any, model: str) -> bool:
    """Whether the model accepts videos, in the one form that litellm converts for its provider."""
    return model.startswith(("gemini/", "vertex_ai/", "bedrock/")) and bool(
        listed(litellm, model).get("supports_video_input")
    )


def family(litellm: Any, model: str) -> str:
    """The maker of the model on any cloud, else the provider: its models can read each other's signatures. Empty if
    unknown."""
    try:
        name, provider, *_ = litellm.get_llm_provider(model=model)
    except Exception:  # the name has no known provider: the call will raise
        return ""
    if provider in ("bedrock", "bedrock_converse"):
        name = name.removeprefix("converse/").removeprefix("invoke/")
        regions = ("us.", "eu.", "apac.", "global.", "jp.", "au.", "us-gov.")
        name = next((name.removeprefix(region) for region in regions if name.startswith(region)), name)
        return name.partition(".")[0] if not name.startswith("arn:") else ""
    if provider in ("vertex_ai", "vertex_ai_beta", "azure_ai") and name.startswith("claude-"):
        return "anthropic"
    if provider == "vertex_ai" and (maker := listed(litellm, model).get("litellm_provider")) in _MAKERS:
        return _MAKERS[maker]
    return {"azure": "openai", "vertex_ai": "gemini", "vertex_ai_beta": "gemini"}.get(provider) or str(provider)


def reasons(litellm: Any, model: str) -> bool | None:
    """Whether the model thinks before it answers; None if litellm does not list it."""
    entry = listed(litellm, model)
    return bool(entry.get("supports_reasoning")) if entry else None


def streams(litellm: Any, model: str) -> bool:
    """Whether litellm lets this model of OpenAI stream its Responses."""
    entry = listed(litellm, model)
    return bool(entry) and entry.get("supports_native_streaming") is not False


def fetches_addresses(litellm: Any, model: str) -> bool:
    """Whether litellm may download what a message names by its URL, into this process. It passes images to most
    providers, and downloads documents for all but these."""
    try:
        _, provider, *_ = litellm.get_llm_provider(model=model)
    except Exception:  # the name has no known provider: the call will raise
        return True
    return provider not in ("openai", "azure", "anthropic")


async def tokens_of(litellm: Any, model: str, messages: Sequence[ChatMessage]) -> int:
    """Input tokens of the messages, by the model's tokenizer if litellm has it, else OpenAI's. Each message is counted
    once; long texts are counted in a thread."""
    form = f"litellm-tokens:{model}"  # a key of its own: other counters count differently
    new = [message for message in messages if form not in message._wire]
    if new:
        if sum(map(_length, new)) > _AT_ONCE:
            await asyncio.to_thread(_count, litellm, model, form, new)
        else:
            _count(litellm, model, form, new)
    return sum(int(message._wire[form]) for message in messages) + REPLY_TOKENS


def text_tokens(litellm: Any, model: str, text: str) -> int:
    return int(litellm.token_counter(model=model, text=text)) if text else 0


def _count(litellm: Any, model: str, form: str, messages: Sequence[ChatMessage]) -> None:
    for message in messages:
        message._wire[form] = sum(_tokens(litellm, model, part) for part in to_wire([message])) + _of_files(message)


def _of_files(message: ChatMessage) -> int:
    """The tokens of uploaded files, whose content is read for the call alone."""
    files: list[Any] = [block for block in message.content if getattr(block, "file", None)]
    return sum(_of_file(block.mime_type or "", block.size or 0) for block in files)


def _of_file(media_type: str, size: int) -> int:
    return size // BYTES_A_TOKEN if media_type.startswith("text/") else FILE_TOKENS


def _tokens(litellm: Any, model: str, part: WireMessage) -> int:
    files = 0
    if isinstance(part.get("content"), list):
        known = [item for item in part["content"] if item["type"] in ("text", "image_url")]
        files = len(part["content"]) - len(known)
        part = {**part, "content": known}
    counted = litellm.token_counter(
        model=model, messages=[part], count_response_tokens=True, use_default_image_token_count=True
    )
    return int(counted) + files * FILE_TOKENS


def _length(message: ChatMessage) -> int:
    return len(message.text) + sum(len(str(call.arguments)) for call in message.tool_calls)
