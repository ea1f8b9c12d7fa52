"""Judge whether an item fits a reader's preferences: by a model, or by matching words."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ravi_django.agents.messages import with_options
from ravi_django.agents.react.result import TOOL_NAME, Goal, ResultType, supports_schema
from ravi_django.kernel import AgentStep, ChatMessage, ChatModel, GenerationOptions, Role, RunContext
from ravi_django.wings.feeds.news.items import OUTSIDE, Item

CURATED = "feed.curated"
RETRIES = 2  # after an invalid verdict
_SHAPE = (
    'Answer with one JSON object and nothing else: {"keep": true or false, "score": from 0 to 1 (how well it fits), '
    '"reason": one short sentence for the reader, "headline": a headline of your own, at most 100 characters}.'
)
_NOT = re.compile(r"(?:not?|without)\s+|[-!]\s*", re.IGNORECASE)
_APART = re.compile(r"[,;.\n]+|\b(?:and|or|but)\b", re.IGNORECASE)
_WORD = re.compile(r"[\w+#-]+")
_PHRASE = 3  # a preference of up to so many words is matched as a phrase; a longer one word by word
_SMALL = 3  # letters; shorter words are ignored in a long preference
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        "about all also any are for from have has how into its just like love me more most much news only prefer read "
        "some stories story that the their them things this to want what when which will with would you your",
    )
)

Short = Annotated[str, Field(max_length=1000)]


def frame(entry: Any) -> tuple[AgentStep, Any]:
    """The progress that a reader of the stream sees of a curated item."""
    return AgentStep.DONE, {"item": entry.result or {}}


class Verdict(BaseModel):
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
    """Judge by a model. The item is a message of its own, apart from instructions and preferences.

    Raises ModelError, and ResultInvalidError if the model gives no valid verdict after RETRIES corrections.
    """
    wishes = f"The reader's preferences:\n{preferences}" if preferences else "The reader has said no preferences."
    system = "\n\n".join([instructions, wishes, _SHAPE, OUTSIDE])
    asked = [ChatMessage.of(Role.SYSTEM, system), ChatMessage.of(Role.USER, item.to_prompt())]
    options = base or GenerationOptions()
    if await supports_schema(model):
        options = with_options(options, response_format=VERDICT.response_format)
    goal = Goal(VERDICT, TOOL_NAME, RETRIES)
    while True:
        response = await ctx.llm(asked, options=options, model=model)
        correction = goal.read_text(response)
        if goal.result is not None:
            return Verdict.model_validate(goal.result.value)
        goal.count()
        asked += [response.message, *([correction] if correction else [])]


def match(item: Item, preferences: str) -> Verdict:
    """Judge by words: `cats, machine learning, not football`. Keeps an item with a wanted and no unwanted term; without
    wanted terms, every item with no unwanted one."""
    wanted, unwanted = _terms(preferences)
    text = f" {' '.join(_WORD.findall(f'{item.title} {item.text}'.casefold()))} "
    if matching := [term for term in unwanted if f" {term} " in text]:
        return Verdict(keep=False, score=0.0, reason=_reason("it has", matching), headline=item.title)
    if not wanted:
        return Verdict(keep=True, score=1.0, reason="nothing speaks against it", headline=item.title)
    if not (matching := [term for term in wanted if f" {term} " in text]):
        return Verdict(keep=False, score=0.0, reason=_reason("it has nothing of", wanted), headline=item.title)
    score = round(len(matching) / len(wanted), 3)
    return Verdict(keep=True, score=score, reason=_reason("it has", matching), headline=item.title)


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
    terms = _WORD.findall(text)
    if len(terms) > _PHRASE or any(word in _FILLERS for word in terms):
        return [word for word in terms if len(word) >= _SMALL and word not in _FILLERS]
    return [" ".join(terms)] if terms else []


def _reason(begin: str, terms: list[str]) -> str:
    return f"{begin} {', '.join(terms)}"[:300]
