"""UserProxyAgent without a runtime: its address, what it asks of a message, what it relays."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from ravi_django.agents import SubAgentConfig, UserProxyAgent
from ravi_django.kernel import (
    Addressees,
    AgentId,
    CancellationError,
    ChatMessage,
    ChatPayload,
    DataPayload,
    InvalidInputError,
    Message,
)
from tests.support.cases import case
from tests.support.fake_context import FakeContext

CONSENT = {"yes", "ok", "approved", "answer"}


class People(FakeContext):
    """One whose people say what they are told to."""

    def __init__(self, said: Any = None) -> None:
        super().__init__()
        self.said = said or {"action": "answer", "text": "Yes.", "by": "ann"}
        self.asked: list[dict[str, Any]] = []

    async def ask_human(self, question: str, **options: Any) -> dict[str, Any]:
        self.asked.append({"question": question, **options})
        said = self.said(question) if callable(self.said) else self.said
        if isinstance(said, BaseException):
            raise said
        return dict(said)


def chat(text: str, **fields: Any) -> Message:
    payload = ChatPayload(message=ChatMessage.of("user", text))
    return Message(target=AgentId("user_proxy", "boss"), payload=payload, **{"correlation_id": "c-1", **fields})


def data(**values: Any) -> Message:
    return Message(target=AgentId("user_proxy", "boss"), payload=DataPayload(data=values), correlation_id="c-1")


def test_it_says_what_it_is() -> None:
    agent = UserProxyAgent("boss", to=[("group:finance", 60), "staff"], answer_within=90, description="Decides.")
    assert agent.spec() == {
        "class": "UserProxyAgent", "id": "user_proxy/boss", "name": "boss", "description": "Decides.",
        "to": [{"to": "group:finance", "within": 60.0}, "staff"], "answer_within": 90.0,
    }  # fmt: skip
    assert UserProxyAgent("boss").id == AgentId("user_proxy", "boss")
    assert UserProxyAgent().id == AgentId("user_proxy", "user")
    assert UserProxyAgent("boss", id="office/boss").id == AgentId("office", "boss")
    assert UserProxyAgent("boss", id=AgentId("office", "boss")).id == AgentId("office", "boss")
    assert SubAgentConfig(UserProxyAgent("boss")).address == AgentId("user_proxy", "boss")
    # a bad option names itself
    for options, field in [
        ({"to": "the boss"}, "to"), ({"to": [("group:a", None), "group:b"]}, "to"),
        ({"answer_within": 0}, "answer_within"), ({"answer_within": True}, "answer_within"),
        ({"answer_within": float("nan")}, "answer_within"), ({"answer_within": "soon"}, "answer_within"),
        ({"id": "nonsense"}, None),
    ]:  # fmt: skip
        with case(options, field):
            with pytest.raises(InvalidInputError) as found:
                UserProxyAgent("boss", **options)
            assert field is None or found.value.field == field


def test_a_question_is_logged_asked_by_its_correlation_id_and_relayed() -> None:
    ctx, message = People(), chat("Send it?", reply_to="run-1")
    asyncio.run(UserProxyAgent("boss").run(ctx, [message]))
    assert ctx.logged == [("hitl.question", {"correlation_id": "c-1", "text": "Send it?"})]
    (asked,) = ctx.asked
    assert (asked["question"], asked["signal"], asked["to"], asked["timeout"]) == (
        "Send it?", "human_reply:c-1", None, None,
    )  # fmt: skip
    assert ctx.replies == [(message, "Yes.")]
    # who is asked and for how long is the sites choice
    ctx = People()
    asyncio.run(
        UserProxyAgent("boss", to="group:finance", answer_within=timedelta(hours=1)).run(ctx, [chat("Send it?")])
    )
    assert (ctx.asked[0]["to"], ctx.asked[0]["timeout"]) == (Addressees.of("group:finance"), 3600.0)
    # other data is asked as it is
    ctx = People()
    asyncio.run(UserProxyAgent("boss").run(ctx, [data(amount=5, question=7)]))
    assert ctx.asked[0]["question"] == '{"amount":5,"question":7}'
    # a cancelled run asks nobody
    ctx = People()
    ctx.meta.cancellation.cancel("no")
    with pytest.raises(CancellationError):
        asyncio.run(UserProxyAgent("boss").run(ctx, [chat("Send it?")]))
    assert ctx.asked == []


def test_a_payload_may_bring_choices_but_no_addressee() -> None:
    ctx = People()
    message = data(
        question="Which?", choices=["a", "b"], free_text=False, context="So.", to="user:eve", answer_within=1
    )
    asyncio.run(UserProxyAgent("boss").run(ctx, [message, data(text="And?")]))
    assert ctx.asked[0] == {
        "question": "Which?", "choices": ["a", "b"], "free_text": False, "context": "So.", "timeout": None,
        "to": None, "signal": "human_reply:c-1",
    }  # fmt: skip
    assert ctx.asked[1]["question"] == "And?"
    # each message of an inbox is asked by a name of its own
    ctx = People(lambda question: {"action": "answer", "text": f"re {question}", "by": ""})
    first, second, third = chat("One?"), chat("Two?"), chat("Three?", correlation_id="")
    asyncio.run(UserProxyAgent("boss").run(ctx, [first, second, third]))
    assert [asked["signal"] for asked in ctx.asked] == [
        "human_reply:c-1", f"human_reply:{second.id}", f"human_reply:{third.id}",
    ]  # fmt: skip
    assert {message.id: said for message, said in ctx.replies} == {
        first.id: "re One?", second.id: "re Two?", third.id: "re Three?",
    }  # fmt: skip


def test_what_is_relayed() -> None:
    # what a program sends is relayed as it is
    for payload in [{"ok": True}, "yes", ["a"], {}, 0, False]:
        with case(payload):
            ctx = People({"action": "signal", "text": "", "by": "", "payload": payload})
            asyncio.run(UserProxyAgent("boss").run(ctx, [chat("Send it?")]))
            assert ctx.replies[0][1] == payload
    # no answer is relayed in words that are no consent
    for action in ["skip", "cancel", "expired", "something new"]:
        with case(action):
            ctx = People({"action": action, "text": "", "by": "ann"})
            asyncio.run(UserProxyAgent("boss").run(ctx, [chat("Send it?")]))
            words = ctx.replies[0][1]
            assert "no consent" in words and not CONSENT & set(words.lower().rstrip(".").split())

    # a question that cannot be asked is told to its asker alone
    def say(question: str) -> Any:
        bad = InvalidInputError("choices are 2 to 20 texts", field="choices")
        return bad if question == "Bad?" else {"action": "answer", "text": "fine", "by": ""}

    ctx = People(say)
    asyncio.run(UserProxyAgent("boss").run(ctx, [data(question="Bad?", choices="x"), chat("Good?")]))
    assert [said for _, said in ctx.replies] == ["The question was not asked: choices are 2 to 20 texts", "fine"]
