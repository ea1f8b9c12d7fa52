"""What the two agents of a feed share: a life in generations, and items of which none ends it."""

from __future__ import annotations

from typing import Any

from ravi_django.agents.items import Item
from ravi_django.kernel import (
    AgentId,
    BudgetExhaustedError,
    CancellationError,
    DeterminismError,
    InvalidInputError,
    LeaseLostError,
    Message,
    MiddlewareTermination,
    RunContext,
    TopicId,
    UncertainEffectError,
)
from ravi_django.kernel.checks import check_text

FAILED = "feed.failed"
NEW_ITEM = "new_feed_item"  # the signal beside a message that was published
PER_GENERATION = 20
# Not the item's doing: the run is to end, or stops for somebody.
OURS = (
    BudgetExhaustedError,
    CancellationError,
    DeterminismError,
    LeaseLostError,
    MiddlewareTermination,
    UncertainEffectError,
)
_WORDS = 500  # characters of an error that are kept


async def note_failure(ctx: RunContext, item: Item, error: Exception) -> dict[str, Any]:
    """Log what has become of an item that failed; returns the words."""
    words = {"type": getattr(error, "type", None) or type(error).__name__, "message": str(error)[:_WORDS]}
    await ctx.log(FAILED, {**item.named(), "topic": item.topic, "publication": item.publication, "error": words})
    return words


def is_child(ctx: RunContext) -> bool:
    supervision = ctx.meta.supervision
    return supervision is not None and supervision.parent_id is not None


def wants_answer(ctx: RunContext, message: Message) -> bool:
    return bool(message.reply_to) and message.reply_to != ctx.run_id


def is_over(ctx: RunContext, inbox: list[Message]) -> bool:
    """Whether the run was another's question alone: it is answered now, and its asker may wait for the end."""
    return is_child(ctx) and bool(inbox) and all(wants_answer(ctx, message) for message in inbox)


# -------------------------------------------------------------------------------------------------- what was given


def address_of(type: str, key: str, id: AgentId | str | None) -> AgentId:
    if id is None:
        return AgentId(type, key)
    return id if isinstance(id, AgentId) else AgentId.parse(str(id))


def topic_of(value: TopicId | str, field: str) -> TopicId:
    """Raises InvalidInputError for the field."""
    if isinstance(value, TopicId):
        return value
    try:
        return TopicId.parse(value)
    except InvalidInputError as error:
        raise InvalidInputError(f"{field}: {error}", field=field) from None


def checked_signal(value: Any) -> str:
    check_text("source_signal", value, 200)
    if value == NEW_ITEM:
        raise InvalidInputError(
            f"source_signal: {NEW_ITEM} only tells of a message that was published, and a newsroom reads that message "
            "anyway; leave it out, or name a signal of your own",
            field="source_signal",
        )
    return str(value)


def model_name(model: Any) -> str | None:
    return None if model is None else str(getattr(model, "name", type(model).__name__))
