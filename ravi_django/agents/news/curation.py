"""Whether an item is one for a reader: by a model that knows their preferences, or by the words of these alone."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ravi_django.agents.news.items import OUTSIDE, Item
from ravi_django.agents.react.result import TOOL_NAME, Goal, ResultType
from ravi_django.kernel import ChatMessage, ChatModel, GenerationOptions, Role, RunContext

CURATED = "feed.curated"
RETRIES = 2  # of a verdict that is none
_SHAPE = (
    'Answer with one JSON object and nothing else: {"keep": true or false, "score": from 0 to 1 (how well it fits), '
    '"reason": one short sentence for the reader, "headline": a headline of your own, at most 100 characters}.'
)
_NOT = re.compile(r"(?:not?|without)\s+|[-!]\s*", re.IGNORECASE)
_APART = re.compile(r"[,;.\n]+|\b(?:and|or|but)\b", re.IGNORECASE)
_WORD = re.compile(r"[\w+#-]+")
_PHRASE = 3  # words of a preference that are looked for as they stand; of a longer one each
_SMALL = 3  # letters of a word that says something by itself
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        "about all also any are for from have has how into its just like love me more most much news only prefer read "
        "some stories story that the their them things this to want what when which will with would you your",
    )
)

Short = Annotated[str, Field(max_length=1000)]


class Verdict(BaseModel):
    """What has become of an item."""

    model_config = ConfigDict(frozen=True)

    keep: bool
    score: float = Field(ge=0, le=1)
    reason: Short
    headline: Short = ""


VERDICT = ResultType(Verdict)


async def judge(
    ctx: RunContext,
    model: ChatModel,
    item: Item,
    preferences: str,
    instructions: str,
    base: GenerationOptions | None = None,
) -> Verdict:
    """By a model. The item is kept apart from the instructions and from the reader's words. Raises ModelError, and
    ResultInvalidError when it gives no verdict, however often it is told why."""
    wishes = f"The reader's preferences:\n{preferences}" if preferences else "The reader has said no preferences."
    system = "\n\n".join([instructions, wishes, _SHAPE, OUTSIDE])
    asked = [ChatMessage.of(Role.SYSTEM, system), ChatMessage.of(Role.USER, item.to_prompt())]
    options = await _options(model, base or GenerationOptions())
    goal = Goal(VERDICT, TOOL_NAME, RETRIES)
    while True:
        response = await ctx.llm(asked, options=options, model=model)
        correction = goal.read_text(response)
        if goal.result is not None:
            return Verdict.model_validate(goal.result.value)
        goal.count()
        asked += [response.message, *([correction] if correction else [])]


async def _options(model: ChatModel, base: GenerationOptions) -> GenerationOptions:
    supports: Any = getattr(model, "supports_schema", None)
    holds = supports is not None and await supports()
    # Built anew, not copied: a copy would carry the digests that were cached for the original.
    given = {name: getattr(base, name) for name in GenerationOptions.model_fields}
    return GenerationOptions(**{**given, "response_format": VERDICT.response_format}) if holds else base


def match(item: Item, preferences: str) -> Verdict:
    """By words: `cats, machine learning, not football`. Kept is what has one of the wanted words and none of the
    others; without a wanted word everything else is."""
    wanted, unwanted = _terms(preferences)
    said = " ".join(_WORD.findall(f"{item.title} {item.text}".casefold()))
    if found := [term for term in unwanted if _has(said, term)]:
        return Verdict(keep=False, score=0.0, reason=_words("it has", found), headline=item.title)
    if not wanted:
        return Verdict(keep=True, score=1.0, reason="nothing speaks against it", headline=item.title)
    if not (found := [term for term in wanted if _has(said, term)]):
        return Verdict(keep=False, score=0.0, reason=_words("it has nothing of", wanted), headline=item.title)
    score = round(len(found) / len(wanted), 3)
    return Verdict(keep=True, score=score, reason=_words("it has", found), headline=item.title)


def _terms(preferences: str) -> tuple[list[str], list[str]]:
    wanted: list[str] = []
    unwanted: list[str] = []
    for part in _APART.split(preferences.casefold()):
        text = part.strip()
        mark = _NOT.match(text)
        terms = _of_part(text[mark.end() :] if mark else text)
        (unwanted if mark else wanted).extend(term for term in terms if term not in (*wanted, *unwanted))
    return wanted, unwanted


def _of_part(text: str) -> list[str]:
    words = _WORD.findall(text)
    if len(words) > _PHRASE or any(word in _FILLERS for word in words):
        return [word for word in words if len(word) >= _SMALL and word not in _FILLERS]
    return [" ".join(words)] if words else []


def _has(said: str, term: str) -> bool:
    return f" {term} " in f" {said} "


def _words(begin: str, terms: list[str]) -> str:
    return f"{begin} {', '.join(terms)}"[:300]
