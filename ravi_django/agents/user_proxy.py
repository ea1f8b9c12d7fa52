"""`UserProxyAgent`: an agent that asks a person."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from ravi_django.agents.messages import unframed
from ravi_django.kernel import Addressees, AgentId, DataPayload, InvalidInputError, Message, RunContext
from ravi_django.kernel.checks import check_seconds

HITL_QUESTION = "hitl.question"
NO_ANSWER = {
    "skip": "The person skipped the question. This is no consent to anything.",
    "cancel": "The person does not want to be asked this. This is no consent to anything.",
    "expired": "Nobody answered in time. This is no consent to anything.",
}
_QUESTION = ("question", "text")  # keys of the question in a data message
_OPTIONS = ("choices", "context", "free_text")  # keys of options for `ctx.ask_human` in a data message


class UserProxyAgent:
    """Asks a person the questions that it receives, and replies with the answers. It has no model and no tools.

    A message is a question: a chat message by its text, or data `{"question", "choices"?, "context"?, "free_text"?}`.
    The reply is the person's text, or a text that is not consent if they skip it, cancel it, or nobody answers in time.
    A program may answer instead with the signal `human_reply:<correlation id>`, whose payload is the reply; the first
    answer counts. All messages of an inbox are asked at once.

    key: the address is `user_proxy/<key>`, unless `id` is another one.
    to: the recipients, an address or several (see Addressees); by default the site's, else the run's owner.
    answer_within: seconds, or a timedelta, until a question expires; None waits forever.
    description: for an agent that may ask this one.

    Raises InvalidInputError that names the parameter.
    """

    def __init__(
        self,
        key: str = "user",
        *,
        to: Any = None,
        answer_within: float | timedelta | None = None,
        id: AgentId | str | None = None,
        name: str = "",
        description: str = "",
    ) -> None:
        self.id = AgentId("user_proxy", key) if id is None else AgentId.parse(str(id))
        self.to = None if to is None else Addressees.of(to)
        self.answer_within = None if answer_within is None else check_seconds("answer_within", answer_within)
        self.name = name or key
        self.description = description or "Ask a person what only they know or may decide, one thing at a time."

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Ask the person about each message, and reply with the answers."""
        ctx.check()
        names = _names(inbox)
        await asyncio.gather(*(self._relay(ctx, *one) for one in zip(inbox, names, strict=True)))

    async def _relay(self, ctx: RunContext, message: Message, correlation_id: str) -> None:
        question, options = _asked(message)
        await ctx.log(HITL_QUESTION, {"correlation_id": correlation_id, "text": question})
        try:
            answer = await ctx.ask_human(
                question, **options, timeout=self.answer_within, to=self.to, signal=f"human_reply:{correlation_id}"
            )
        except InvalidInputError as error:  # an invalid question: still ask the others
            await ctx.reply(message, f"The question was not asked: {error}")
            return
        match answer["action"]:
            case "answer":
                reply = answer["text"]
            case "signal":
                reply = answer["payload"]
            case action:
                reply = NO_ANSWER.get(action, NO_ANSWER["cancel"])
        await ctx.reply(message, reply)

    def spec(self) -> dict[str, Any]:
        """JSON for the admin, and to see that the agent has changed."""
        return {
            "class": type(self).__name__,
            "id": str(self.id),
            "name": self.name,
            "description": self.description,
            "to": None if self.to is None else self.to.to_json(),
            "answer_within": self.answer_within,
        }


def _names(inbox: list[Message]) -> list[str]:
    """The names by which the messages are answered: the correlation id, or the message's own id if it has none or an
    earlier message has the same."""
    names: list[str] = []
    for message in inbox:
        known = message.correlation_id in ("", *names)
        names.append(message.id if known else message.correlation_id)
    return names


def _asked(message: Message) -> tuple[str, dict[str, Any]]:
    """The question and its options."""
    data = message.payload.data if isinstance(message.payload, DataPayload) else {}
    asked: Any = next((data[name] for name in _QUESTION if isinstance(data.get(name), str)), None)
    if asked is None:
        return unframed(message).text, {}
    return asked, {name: data[name] for name in _OPTIONS if data.get(name) is not None}
