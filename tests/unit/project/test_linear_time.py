"""Every reader of text that a stranger or a member of staff writes takes linear time, whatever the text is."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any

import pytest

from ravi_django.admin.agents.versions import changes
from ravi_django.agents.react.result import ResultType
from ravi_django.api.base import StrictJSONParser
from ravi_django.calls.builtin.calculator import calculate
from ravi_django.calls.llm.collector import parse_arguments
from ravi_django.calls.llm.errors import translate_error
from ravi_django.calls.llm.wire import is_public
from ravi_django.calls.net.html_text import readable
from ravi_django.calls.rehearsal.model import RehearsalModel
from ravi_django.kernel import Addressees, AgentId, ChatMessage, GenerationOptions, RunMeta, ToolSpec, TopicId
from ravi_django.kernel.content import TextBlock, ToolResultBlock, ToolUseBlock
from ravi_django.kernel.visible import visible
from ravi_django.management.transcript import printable
from ravi_django.pages import formats
from ravi_django.wings.feeds.fetching import signatures
from ravi_django.wings.feeds.fetching.parse import parse
from ravi_django.wings.feeds.news.curation import match
from ravi_django.wings.feeds.news.items import OUTSIDE, TEXT, Item
from ravi_django.wings.feeds.news.personal_feed import LONGEST
from ravi_django.wings.guards.patterns import chosen, spans_in
from tests.support import world
from tests.support.world import PERSONAL_FEED_PREFER, PromptTemplate, check_cron

pytestmark = pytest.mark.full

SIZES = 5_000, 50_000  # bytes of each text
LINEAR = 3 * SIZES[1] / SIZES[0]  # how many times as long the longer text may take; a quadratic reader takes 100 times
NOISE_S = 0.003  # below it a time says nothing

# Texts: a beginning, what is repeated, an end.
SHAPES = [
    ("", "{", ""), ("", "{%", ""), ("", "{{ x|", ""), ("", "{#", "\n"), ("{% if ", "x and ", "%}"),
    ("{{ x", "|a", "}}"), ("{% if ",'"', " %}"), ("", "{% verbatim %}", ""), ("", "{{ a }}\n", ""), ("x", " ", "!"),
    ("", "\t\n ", "."),
    ("", "send ", ""), ("invoice to ", "a ", "for"), ("what did i ", "what did i ", ""), ("", "1 + ", ""),
    ("", "1,234", "%"), ("", "(", ")"), ("", "[", "]"), ('{"a":', '{"a":', "1"), ('{"text": "', '\\"', '"}'),
    ("", "<a ", ""), ("<rss><channel>", "<item>", ""), ("<rss><channel><item><title>", "<!--", ""),
    ("", "<![CDATA[", ""), ("<rss>", "&#38;", "</rss>"), ("<x ", "a='", ">"), ("mail to ", "a@a.", ""),
    ("+", "1-", "x"), ("https://", "a:a@", ""),
    ("?", "key=sk-", ""), ("not ", "not, ", "\u202e"), ("", "0.0.0.", "é"), ("https://", "a:", ""),
    ("```", "a", ""),
]  # fmt: skip

TOOLS = [
    ToolSpec(name=name, description="d", parameters={"required": ["task"], "properties": {"task": {"type": "string"}}})
    for name in ("calculator", "send_invoice", "send_mail", "current_time", "handoff_writer")
]


def rehearse(text: str, *, tools: Any = (), system: str = "Help.") -> None:
    call = ChatMessage(role="assistant", content=[ToolUseBlock(tool_name="t", arguments={}, call_id="c")])
    result = ChatMessage(role="tool", content=[ToolResultBlock(call_id="c", content=[TextBlock(text=text)])])
    said = [ChatMessage.of("system", system), ChatMessage.of("user", text)]
    for messages in (said, [*said, call, result]):
        asyncio.run(answered(messages, GenerationOptions(tools=tools)))


async def answered(messages: list[ChatMessage], options: GenerationOptions) -> None:
    async for _ in RehearsalModel(delay=0).stream(messages, options, RunMeta(run_id="r")):
        pass


def versions(text: str) -> tuple[str, str]:
    """Of different lines, the second with each two of them swapped."""
    lines = [f"{place} {text[place : place + 20]!r}" for place in range(0, len(text), 20)]
    return "\n".join(lines), "\n".join(line for pair in zip(lines[1::2], lines[::2], strict=False) for line in pair)


def rehearse_news(text: str) -> None:
    wishes = f'The reader\'s preferences:\n{text}\n\nAnswer with one JSON object: {{"keep": true or false'
    rehearse(Item(text=text).to_prompt(), system=f"{wishes}\n\n{OUTSIDE}")


READERS: dict[str, Callable[[str], Any]] = {
    "a template": PromptTemplate,
    "a template's values": lambda text: VALUES.render({"x": text}),
    "personal data": lambda text: spans_in(text, tuple(chosen(None))),
    "preferences": lambda text: (PERSONAL_FEED_PREFER.match(text), match(Item(text=text[:TEXT]), text[:LONGEST])),
    "the rehearsal model": rehearse,
    "the rehearsal model with tools": lambda text: (rehearse(text, tools=TOOLS[:3]), rehearse(text, tools=TOOLS)),
    "the rehearsal model on news": rehearse_news,
    "HTML": lambda text: readable(text, "https://example.com/"),
    "a feed": lambda text: parse(text.encode()),
    "a feed that is XML": lambda text: parse(text.encode(), "application/rss+xml"),
    "a feed that is JSON": lambda text: parse(json.dumps({"version": "1", "items": [{"content_html": text}]}).encode()),
    "a JSON body": lambda text: StrictJSONParser().parse(BytesIO(text.encode())),
    "a webhook": lambda text: world.webhooks_parsed(text.encode()),
    "a signature": lambda text: signatures.is_signed("ravi", {"X-Ravi-Signature": text}, b"", ["s" * 16], 0),
    "a tool call's arguments": parse_arguments,
    "a calculation": calculate,
    "a schedule": check_cron,
    "an address": lambda text: (AgentId.parse(text), TopicId.parse(text)),
    "an image's address": is_public,
    "an error of a provider": lambda text: translate_error(ValueError(text)),
    "an error of a tool": lambda text: world.tool_results_words(ValueError(text)),
    "a result of a tool": lambda text: world.result_of([text, text.encode()]),
    "an input": lambda text: world.submit_message(AgentId.parse("react/x"), text),
    "two versions of instructions": lambda text: changes(*({"system_instructions": said} for said in versions(text))),
    "a typed result": lambda text: TYPED.from_text(text),
    "a feed's headers": lambda text: (world.fetch_max_age(text), world.fetch_retry_after(text)),
    "an approver": lambda text: Addressees.of(text),
    "a link's token": world.parts_of,
    "a page": lambda text: (
        formats.snippet(text),
        formats.pretty(text),
        formats.blocks([{"type": "text", "text": text}]),
    ),
    "a terminal": printable,
    "hidden characters": visible,
}
TYPED = ResultType({"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "^(a|b)*$"}})
VALUES = PromptTemplate(
    '{{ x|slugify }}{{ x|title }}{{ x|wordwrap:20 }}{{ x|truncatewords:9 }}{{ x|pprint }}{{ x|cut:" " }}'
    "{% spaceless %}{{ x }}{% endspaceless %}",
    {"x": {}},
)


@pytest.mark.parametrize("reader", READERS)
def test_time_is_linear(reader: str) -> None:
    assert len(SHAPES) >= 32
    slow = {}
    for shape in SHAPES:
        read = READERS[reader]
        short, long = (seconds(read, text_of(shape, size)) for size in SIZES)
        if long > LINEAR * max(short, NOISE_S):  # once more: what else the machine did may have cost it
            short, long = (min(seconds(read, text_of(shape, size)) for _ in range(3)) for size in SIZES)
            if long > LINEAR * max(short, NOISE_S):
                slow["".join(shape)] = f"{short:.4f} s, {long:.4f} s"
    assert slow == {}


def text_of(shape: tuple[str, str, str], size: int) -> str:
    head, unit, tail = shape
    return head + unit * ((size - len(head + tail)) // len(unit)) + tail


def seconds(read: Callable[[str], Any], text: str) -> float:
    """Of this thread on a processor. To refuse a text is to have read it."""
    begun = time.thread_time()
    with suppress(Exception):
        read(text)
    return time.thread_time() - begun
