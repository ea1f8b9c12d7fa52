"""PIIRedaction: the model is sent placeholders, tools and people get the values."""

import base64
import json

import pytest

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.calls.llm import LLMFactory
from ravi_django.kernel import (
    AudioBlock,
    ChatMessage,
    CodeBlock,
    DataBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UIResourceBlock,
    UnknownBlock,
)
from ravi_django.middleware import PIIRedaction
from ravi_django.models import JournalEntry
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.openai_server import Body, OpenAIServer, Reply, tool_results
from tests.support.runs import code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

BOB, ANN, CARD = "bob@example.org", "ann@example.org", "4111 1111 1111 1111"


def saying(*messages, redaction=None, model=None):
    """An agent's code that sends these messages and tells the answer."""

    async def story(ctx, inbox):
        return (await ctx.llm(list(messages))).text

    agent = code(story, model=model or ScriptedModel(["fine"]))
    agent.middleware = [redaction or PIIRedaction()]
    return agent


def sent(agent, call=-1):
    return agent.model.calls[call].messages


@tool(effect="at_most_once")
def send(to: str) -> str:
    """Send."""
    sent_to.append(to)
    return f"sent to {to}, copy to {ANN}"


sent_to: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_sent():
    sent_to.clear()


def mailing(middleware):
    """A ReAct agent that mails whom it was asked to, by the placeholder that it was shown."""
    call = ToolUseBlock(tool_name="send", arguments={"to": "[email 1]"}, call_id="c1")
    model = ScriptedModel([[TextBlock(text="To [email 1]."), call], "Done: [email 1], [email 2]."])
    agent = ReActAgent("code", id="test/code", model=model, tools=[send], middleware=middleware)
    register(agent)
    return agent


def test_the_model_sees_placeholders_and_the_tool_and_the_user_the_values():
    agent = mailing([PIIRedaction()])
    run = drive(make_run(text=f"Write to {BOB}"))
    first, second = agent.model.calls
    assert first.messages[-1].text == "Write to [email 1]"
    assert second.messages[1].tool_calls[0].arguments == {"to": "[email 1]"}
    assert second.messages[2].content[0].text == "sent to [email 1], copy to [email 2]"
    assert sent_to == [BOB]
    assert run.output == f"Done: {BOB}, {ANN}."
    said = JournalEntry.objects.filter(kind="llm.call").order_by("seq").first().result["content"]
    assert (said[0]["text"], said[1]["arguments"]) == (f"To {BOB}.", {"to": BOB}), "the journal keeps what came out"


@pytest.mark.parametrize("dies", [1, 2, 4, "end"])
def test_a_crash_and_a_replay_send_once_and_say_the_same(clock, dies):
    mailing([PIIRedaction()])
    run = take_over(clock, drive(make_run(text=f"Write to {BOB}"), dies=dies))
    assert run.output == f"Done: {BOB}, {ANN}."
    assert sent_to == [BOB]


def test_without_restoring_placeholders_stay():
    mailing([PIIRedaction(restore=False)])
    run = drive(make_run(text=f"Write to {BOB}"))
    assert sent_to == ["[email 1]"]
    assert run.output.startswith("Done: [email 1]")


def test_everything_that_is_text_is_redacted():
    text = base64.b64encode(f"from {BOB}".encode()).decode()
    blocks = [
        TextBlock(text=BOB),
        CodeBlock(code=f"x = '{BOB}'"),
        DataBlock(data={BOB: [{"card": 4111111111111111}, CARD, 7, True, None]}),
        ErrorBlock(message=BOB, details={"from": "10.0.0.1"}),
        ImageBlock(alt=BOB, data="aaaa"),
        AudioBlock(transcript=BOB),
        DocumentBlock(name=BOB, data=text, mime_type="text/plain"),
        UIResourceBlock(uri=f"ui://{BOB}", text=BOB),
        UnknownBlock.model_validate({"type": "hologram", "of": {"deep": [BOB]}}),
        ThinkingBlock(text=BOB),
    ]
    kept = [ThinkingBlock(text=BOB, signature="s"), DocumentBlock(data="aaaa", mime_type="application/pdf")]
    messages = [
        ChatMessage.of("system", f"You help {BOB}"),
        ChatMessage(role=Role.USER, content=blocks, name=BOB, metadata={"from": BOB}),
        ChatMessage(
            role=Role.ASSISTANT, content=[ToolUseBlock(tool_name="t", arguments={"a": {"b": [BOB]}}, call_id="c")]
        ),
        ChatMessage(role=Role.TOOL, content=[ToolResultBlock(call_id="c", content=[TextBlock(text=BOB)])]),
        ChatMessage(role=Role.ASSISTANT, content=kept),
    ]
    before = [message.model_copy(deep=True) for message in messages]
    agent = saying(*messages)
    drive(make_run())
    shown = [message.to_json() for message in sent(agent)]
    assert sent(agent)[4].content == kept, "what is signed or bytes stays"
    shown.pop()
    document = base64.b64decode(shown[1]["content"][6]["data"]).decode()
    assert document == "from [email 1]"
    assert not any(value in json.dumps(shown) for value in (BOB, CARD, "4111111111111111", "10.0.0.1"))
    assert shown[1]["content"][2]["data"] == {
        "[email 1]": [{"card": "[credit card 1]"}, "[credit card 2]", 7, True, None]
    }
    assert messages == before


def test_the_same_value_has_the_same_number_and_a_text_that_looks_like_one_keeps_its_own():
    model = ScriptedModel(["[email 1] [email 2] [email 3] [Email 2] [email 9]"])
    agent = saying(ChatMessage.of("user", f"I say [email 1]. {BOB} {ANN} {BOB}"), model=model)
    run = drive(make_run())
    assert sent(agent)[0].text == "I say [email 1]. [email 2] [email 3] [email 2]"
    assert run.output == f"[email 1] {BOB} {ANN} {BOB} [email 9]"
    redaction = PIIRedaction(kinds=["email"], patterns={"order no": r"ORD-\d{6}"})
    agent = saying(ChatMessage.of("user", f"ORD-123456 of {BOB} from 10.0.0.1"), redaction=redaction)
    drive(make_run())
    assert sent(agent)[0].text == "[order no 1] of [email 1] from 10.0.0.1"


@pytest.mark.parametrize(
    ("restore", "text", "streamed"),
    [
        (True, f"I am {BOB}", [f"Dear {BOB} , hello"]),  # whole, once it is restored
        (True, "I am nobody", ["Dear ", "[email ", "1] ", ", ", "hello"]),
        (False, f"I am {BOB}", ["Dear ", "[email ", "1] ", ", ", "hello"]),
    ],
)
def test_a_placeholder_that_may_be_split_is_held_back(monkeypatch, restore, text, streamed):
    shown = []
    delta = world.frames_delta
    world.patch(monkeypatch, "frames_delta", lambda *args, **kwargs: shown.append(args[2]) or delta(*args, **kwargs))
    model = ScriptedModel(["Dear [email 1] , hello"], chunk="words")
    saying(ChatMessage.of("user", text), redaction=PIIRedaction(restore=restore), model=model)
    drive(make_run())
    assert shown == streamed


def test_messages_are_scanned_once_and_a_message_that_was_redacted_is_sent_as_the_same_object(monkeypatch):
    from ravi_django.wings.guards import pii

    scanned = []
    spans_in = pii.spans_in
    monkeypatch.setattr(pii, "spans_in", lambda *args: scanned.append(1) or spans_in(*args))
    messages = [ChatMessage.of("user", f"{number}: {BOB}") for number in range(3)]

    async def story(ctx, inbox):
        for turn in range(1, 4):
            await ctx.llm(messages[:turn])

    agent = code(story, model=ScriptedModel(["a"]))
    agent.middleware = [PIIRedaction()]
    drive(make_run())
    assert len(scanned) == 6  # each once to find, once to replace
    assert sent(agent, 2)[0] is sent(agent, 0)[0]


def test_what_is_remembered_is_bounded(monkeypatch):
    from ravi_django.wings.guards import pii

    monkeypatch.setattr(pii, "MAX_KNOWN", 2)
    redaction = PIIRedaction()
    agent = saying(*[ChatMessage.of("user", f"{number}: {BOB}") for number in range(5)], redaction=redaction)
    drive(make_run())
    assert len(redaction._known) == 2
    assert [message.text for message in sent(agent)] == [f"{number}: [email 1]" for number in range(5)]


def test_nothing_personal_is_on_the_wire():
    def script(body: Body) -> Reply:
        if tool_results(body):
            return Reply(text="Done: [email 1].")
        return Reply(tool_calls=(("send", {"to": "[email 1]"}),))

    with OpenAIServer(script) as server:
        model = LLMFactory("openai/gpt-4o", "sk-test", api_base=server.base_url, timeout=20).build()
        agent = ReActAgent(
            "code",
            id="test/code",
            model=model,
            tools=[send],
            system_instructions=f"You work for {ANN}, {CARD}.",
            middleware=[PIIRedaction()],
        )
        register(agent)
        run = drive(make_run(text=f"Write to {BOB} or +49 30 1234567, DE89370400440532013000"))
        wire = json.dumps([request.body for request in server.requests])
    assert run.error is None
    assert run.output == f"Done: {ANN}."
    assert sent_to == [ANN]
    assert len(server.requests) == 2
    found = [value for value in (BOB, ANN, CARD, "1234567", "DE89370400440532013000") if value in wire]
    assert found == []
    assert "[email 1]" in wire and "[iban 1]" in wire
