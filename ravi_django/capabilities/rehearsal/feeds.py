"""What the rehearsal model makes of news: the first sentence of an item, and a verdict by the words of the reader's
preferences."""

from __future__ import annotations

import json
import re
from typing import Any

from ravi_django.agents.news.curation import match
from ravi_django.agents.news.items import OUTSIDE, Item
from ravi_django.capabilities.rehearsal.rules import MOST_READ

_WISHES, _AFTER = "The reader's preferences:\n", "\n\nAnswer with one JSON object"
_VERDICT = '{"keep": true or false'
_SENTENCE = re.compile(r".+?[.!?…](?=\s|$)", re.DOTALL)
_HEADLINE = 80  # characters


def about_item(instructions: str, text: str, label: str) -> str | None:
    """What to say of the item that `text` is; None when the conversation is about something else. Every text that a
    person is shown begins with `label`: an answer that is to be JSON has it in its reason."""
    item = _item(text) if OUTSIDE in instructions else None
    if item is None:
        return None
    if _VERDICT not in instructions:
        return label + first_sentence(item.text or item.title)
    wishes = instructions.partition(_WISHES)[2].rpartition(_AFTER)[0]
    found = match(item, wishes[:MOST_READ])
    headline = item.title or first_sentence(item.text.removeprefix(label))[:_HEADLINE]
    return json.dumps({**found.model_dump(), "reason": label + found.reason, "headline": headline})


def first_sentence(text: str) -> str:
    text = " ".join(text.split())
    found = _SENTENCE.match(text)
    return found[0] if found else text


def _item(text: str) -> Item | None:
    try:
        given: Any = json.loads(text)
    except ValueError:
        return None
    return Item.of_data(given)
