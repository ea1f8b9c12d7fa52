from __future__ import annotations

import time

import pytest

from ravi_django.capabilities.llm import RehearsalModel
from ravi_django.capabilities.llm.arithmetic import find_expressions
from ravi_django.kernel import (
    CancellationError,
    CancellationToken,
    ChatMessage,
    GenerationOptions,
    RunMeta,
    TextBlock,
    TextDelta,
    ToolResultBlock,
    ToolSpec,
)


def spec(name: str, description: str = "", **properties: str) -> ToolSpec:
    schema = {name: {"type": kind} for name, kind in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(schema)}
    return ToolSpec(name=name, description=description, parameters=parameters)


CALCULATOR = spec("calculator", expression="string")
INVOICE = spec("send_invoice", customer="string", amount="number")
MAIL = spec("send_mail", to="string", text="string")
TIME = spec("current_time")
TOOLS = [CALCULATOR, TIME, INVOICE, MAIL]


@pytest.fixture
def ask():
    """The rehearsal model's response to a conversation."""

    async def respond(*messages: str | ChatMessage, tools=TOOLS, tool_choice=None):
        conversation = [ChatMessage.of("user", item) if isinstance(item, str) else item for item in messages]
        options = GenerationOptions(tools=tools, tool_choice=tool_choice)
        stream = RehearsalModel(delay=0).stream(conversation, options, RunMeta(run_id="r"))
        return [event async for event in stream][-1]

    return respond


def result_of(response, text, **fields):
    results = [
        ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=text)], **fields)
        for call in response.message.tool_calls
    ]
    return ChatMessage(role="tool", content=results)


def calls_of(response):
    return [(call.tool_name, call.arguments) for call in response.message.tool_calls]


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("what is 12 * (3 + 4)?", ["12 * (3 + 4)"]),
        ("calculate 2^10", ["2 ** 10"]),
        ("17 plus 4", ["17 + 4"]),
        ("What's 1,250.50 minus 0.5.", ["1250.50 - 0.5"]),
        ("15% of 80", ["15 / 100 * 80"]),
        ("7 squared, please", ["7 ** 2"]),
        ("(1 + 2) * 3 and 10 divided by 4", ["(1 + 2) * 3", "10 / 4"]),
        ("3 x 4 apples (see 2 + 2)", ["3 * 4", "2 + 2"]),
        ("-3 + 5", ["-3 + 5"]),
        ("I have 3 apples", []),
        ("meet me on 2025-11-21 at 10", []),
        ("call 3 (4)", []),
        ("((((((((((", []),
        ("", []),
    ],
)
def test_finds_arithmetic(text, expressions):
    assert find_expressions(text) == expressions


def test_long_nonsense_is_read_quickly():
    started = time.thread_time()

    find_expressions("1+(" * 20_000 + "2 ** " * 20_000)

    assert time.thread_time() - started < 5


@pytest.mark.asyncio
class TestAnswers:
    async def test_calculates_with_the_tool_and_reports(self, ask):
        question = "what is 12 * (3 + 4)?"

        asked = await ask(question)
        answered = await ask(question, asked.message, result_of(asked, "84"))

        assert calls_of(asked) == [("calculator", {"expression": "12 * (3 + 4)"})]
        assert asked.finish_reason == "tool_calls"
        assert answered.text == "[rehearsal] 12 * (3 + 4) = 84."

    @pytest.mark.parametrize(
        "text",
        [
            "Send an invoice of 100 to ACME",
            "please send an invoice for $100 to ACME.",
            "Send ACME an invoice for 100 dollars",
            "invoice ACME for 100",
            "send an invoice to ACME for 100 euros please",
        ],
    )
    async def test_sends_an_invoice(self, ask, text):
        assert calls_of(await ask(text)) == [("send_invoice", {"customer": "ACME", "amount": 100})]

    @pytest.mark.parametrize("text", ["Send a mail to ada@example.com: Bye, Ada.", "mail to ada@example.com Bye, Ada."])
    async def test_sends_a_mail(self, ask, text):
        assert calls_of(await ask(text)) == [("send_mail", {"to": "ada@example.com", "text": "Bye, Ada."})]

    @pytest.mark.parametrize(
        ("result", "fields", "words"),
        [
            ("invoice 7 sent", {}, "is done: invoice 7 sent."),
            ("denied: too much", {}, "did not happen: denied: too much."),
            (
                "denied: too much; do not call it again unchanged",
                {"is_error": True},
                "did not happen: denied: too much.",
            ),
            ("skipped: send_invoice was not called; go on without it", {}, "did not happen: skipped: send_invoice"),
            (
                '[a person changed the arguments of this call (not denied); it was made with {"amount": 5}]\n'
                "Invoice 7: 5.00 sent to ACME.",
                {},
                "was changed by a person: Invoice 7: 5.00 sent to ACME.",
            ),
            ("mail server is down", {"is_error": True}, "did not happen: mail server is down."),
        ],
    )
    async def test_reports_what_became_of_the_invoice(self, ask, result, fields, words):
        question = "Send an invoice of 100 to ACME"
        asked = await ask(question)

        answered = await ask(question, asked.message, result_of(asked, result, **fields))

        assert answered.text.startswith(f"[rehearsal] The invoice of 100 to ACME {words}")
        assert "do not call" not in answered.text

    async def test_tells_the_time_with_the_tool(self, ask):
        assert calls_of(await ask("What time is it?")) == [("current_time", {})]

    async def test_delegates_to_the_fitting_agent(self, ask):
        team = [
            spec("handoff_writer", "Writes and edits texts.", task="string"),
            spec("handoff_researcher", "Finds facts and sources.", task="string"),
        ]
        question = "Find the sources for 2 + 2"

        asked = await ask(question, tools=[*team, CALCULATOR])
        answered = await ask(question, asked.message, result_of(asked, "Euclid."), tools=team)

        assert calls_of(asked) == [("handoff_researcher", {"task": question})]
        assert answered.text == "[rehearsal] researcher says: Euclid."

    async def test_delegates_to_the_first_agent_when_none_fits(self, ask):
        team = [spec("handoff_a", task="string"), spec("handoff_b", task="string")]

        assert calls_of(await ask("hello", tools=team)) == [("handoff_a", {"task": "hello"})]

    async def test_delegates_to_two_agents_at_once_and_reports_both(self, ask):
        team = [
            spec("handoff_researcher", "Finds facts, and calculates.", task="string"),
            spec("handoff_writer", "Writes and edits texts.", task="string"),
            spec("handoff_critic", "Says what is wrong with a text.", task="string"),
        ]
        question = "Work out 12 * (3 + 4), and write a note about it."

        asked = await ask(question, tools=team)
        answers = [("[rehearsal] 12 * (3 + 4) = 84.", False), ("react/writer failed: no ink", True)]
        results = [
            ToolResultBlock(call_id=call.call_id, content=[TextBlock(text=text)], is_error=is_error)
            for call, (text, is_error) in zip(asked.message.tool_calls, answers, strict=True)
        ]
        answered = await ask(question, asked.message, ChatMessage(role="tool", content=results), tools=team)

        task = {"task": question}
        assert calls_of(asked) == [("handoff_researcher", task), ("handoff_writer", task)]
        assert len({call.call_id for call in asked.message.tool_calls}) == 2
        assert answered.text == (
            "[rehearsal] researcher says: 12 * (3 + 4) = 84. writer gave no answer: react/writer failed: no ink."
        )

    async def test_repeats_what_it_was_told(self, ask):
        assert "hello there" in (await ask("hello there")).text

    async def test_the_history_is_visible(self, ask):
        first = await ask("my cat is called Mia")

        again = await ask("my cat is called Mia", first.message, "what did I say before?")
        other = await ask("my cat is called Mia", first.message, "and now?")

        assert again.text == '[rehearsal] Before this you said: "my cat is called Mia"'
        assert "my cat is called Mia" in other.text

    async def test_a_result_of_an_earlier_question_is_not_reported_again(self, ask):
        first = await ask("1 + 1")

        second = await ask("1 + 1", first.message, result_of(first, "2"), "2 + 2")

        assert calls_of(second) == [("calculator", {"expression": "2 + 2"})]
        assert second.message.tool_calls[0].call_id != first.message.tool_calls[0].call_id

    async def test_without_the_tool_it_only_talks(self, ask):
        response = await ask("1 + 1", tools=[])

        assert not response.message.tool_calls
        assert response.text.startswith("[rehearsal] ")

    async def test_tool_choice_none(self, ask):
        assert not (await ask("1 + 1", tool_choice="none")).message.tool_calls

    async def test_a_forced_tool_is_called_with_fitting_arguments(self, ask):
        search = ToolSpec(
            name="search",
            parameters={
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "limit": {"type": "integer"},
                    "order": {"enum": ["new", "old"]},
                    "deep": {"type": "boolean"},
                    "optional": {"type": "string"},
                },
                "required": ["query", "limit", "order", "deep"],
            },
        )

        response = await ask("the 3 newest cats", tools=[*TOOLS, search], tool_choice="search")

        (call,) = calls_of(response)
        assert call == ("search", {"query": "the 3 newest cats", "limit": 1, "order": "new", "deep": False})

    async def test_a_forced_tool_that_fits_gets_the_real_arguments(self, ask):
        response = await ask("what is 2 + 3", tool_choice="calculator")

        assert calls_of(response) == [("calculator", {"expression": "2 + 3"})]

    async def test_required_calls_something(self, ask):
        assert calls_of(await ask("hello", tool_choice="required")) == [("calculator", {"expression": "hello"})]

    async def test_an_empty_conversation(self, ask):
        assert (await ask(tools=[])).text.startswith("[rehearsal] ")

    async def test_usage_counts_words_and_is_free(self, ask):
        response = await ask("one two three", tools=[])

        assert response.usage.input_tokens == 3
        assert response.usage.output_tokens == len(response.text.split())
        assert response.cost == 0.0

    async def test_streams_word_by_word(self):
        stream = RehearsalModel(delay=0).stream(
            [ChatMessage.of("user", "hello  there")], GenerationOptions(), RunMeta(run_id="r")
        )

        *deltas, response = [event async for event in stream]

        assert all(isinstance(delta, TextDelta) and len(delta.text.split()) == 1 for delta in deltas)
        assert "".join(delta.text for delta in deltas) == response.text

    async def test_stops_when_cancelled(self):
        token = CancellationToken()
        meta = RunMeta(run_id="r", cancellation=token)
        stream = RehearsalModel(delay=0).stream([ChatMessage.of("user", "hello")], GenerationOptions(), meta)
        await anext(stream)
        token.cancel()

        with pytest.raises(CancellationError):
            await anext(stream)
