"""What the rehearsal model answers about a news item."""

from __future__ import annotations

import json
import re

from ravi_django.calls.rehearsal.rules import LABEL, MOST_READ
from ravi_django.wings.feeds.news.curation import match
from ravi_django.wings.feeds.news.items import OUTSIDE, Item

_WISHES, _AFTER = "The reader's preferences:\n", "\n\nAnswer with one JSON object"
_VERDICT = '{"keep": true or false'
_SENTENCE = re.compile(r".+?[.!?…](?=\s|$)", re.DOTALL)
_HEADLINE = 80  # characters


def about_item(instructions: str, text: str) -> str | None:
    """The answer about the news item in `text`; None if the conversation is not about one. Every text for people begins
    with LABEL: in a JSON answer, the reason."""
    item = _item(text) if OUTSIDE in instructions else None
    if item is None:
        return None
    if _VERDICT not in instructions:
        return LABEL + _first_sentence(item.text or item.title)
    wishes = instructions.partition(_WISHES)[2].rpartition(_AFTER)[0]
    verdict = match(item, wishes[:MOST_READ])
    headline = item.title or _first_sentence(item.text.removeprefix(LABEL))[:_HEADLINE]
    return json.dumps({**verdict.model_dump(), "reason": LABEL + verdict.reason, "headline": headline})


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    sentence = _SENTENCE.match(text)
    return sentence[0] if sentence else text


def _item(text: str) -> Item | None:
    try:
        return Item.of_data(json.loads(text))
    except ValueError:
        return None
