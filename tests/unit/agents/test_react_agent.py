import asyncio
import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest

from ravi_django.agents import (
    CompactionPipeline,
    ContextConfig,
    ExecutionTracker,
    InMemoryHistoryProvider,
    ReActAgent,
    SlidingWindowCompaction,
    create_assistant_agent,
    tool,
)
from ravi_django.agents._task import _task_agent_id, _task_agent_label, _task_parent_agent_id, _task_thread_id
from ravi_django.kernel import (
    INVALID_ARGUMENTS_KEY,
    Agent,
    AgentId,
    BudgetExhaustedError,
    CancellationError,
    ChatMessage,
    ChatPayload,
    DeterminismError,
    ExecutionBudget,
    GenerationOptions,
    InvalidInputError,
    LeaseLostError,
    Message,
    RunContext,
    SuspendInterrupt,
    TextBlock,
    ToolResultBlock,
    TopicId,
)
from tests.support.fake_context import FakeContext, call

AGENT = AgentId("react", "helper")
BOUND_S = 5.0


class Model:
    """What an agent needs to be built; the fake context answers in its place."""

    name = "fake-model"

    def stream(self, messages: Any, options: Any, meta: Any) -> Any:
        raise AssertionError("agents call ctx.llm, never the model")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def echo(label: str) -> str:
    return label


@tool(risk="high")
def pay(amount: int) -> str:
    return f"paid {amount}"


@tool
async def whoami(ctx: RunContext) -> str:
    return f"{_task_agent_id.get()} {_task_agent_label.get()} {_task_thread_id.get()} {_task_parent_agent_id.get()}"


TOOLS = [add, echo, pay, whoami]


def agent(**options: Any) -> ReActAgent:
    return ReActAgent("helper", **{"model": Model(), "tools": TOOLS, **options})


def ask(text: str = "hello", **fields: Any) -> Message:
    return Message(target=AGENT, payload=ChatPayload(message=ChatMessage.of("user", text)), **fields)


async def run(made: ReActAgent, ctx: FakeContext, *inbox: Message) -> Any:
    return await made.run(ctx, list(inbox) or [ask()])  # type: ignore[arg-type]


def results_in(view: list[ChatMessage]) -> list[tuple[str, str, bool]]:
    return [
        (block.call_id, block.text, block.is_error)
        for message in view
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]


def remembering(**options: Any) -> tuple[ReActAgent, InMemoryHistoryProvider]:
    history = InMemoryHistoryProvider()
    return agent(context=ContextConfig(history), **options), history


async def stored(history: InMemoryHistoryProvider, session_id: str = "session-1") -> list[str]:
    return [f"{turn.role.value}:{turn.text}" for turn in await history.get(AGENT, session_id)]


pytestmark = pytest.mark.asyncio


# --- the loop


async def test_an_answer_ends_the_run_and_is_delivered() -> None:
    ctx = FakeContext(["42"])
    asked = ask("what is it?")

    output = await run(agent(system_instructions="Be brief."), ctx, asked)

    assert output == "42"
    assert ctx.replies == [(asked, "42")]
    assert [(turn.role.value, turn.text) for turn in ctx.views[0]] == [("system", "Be brief."), ("user", "what is it?")]


async def test_tool_results_go_back_to_the_model() -> None:
    ctx = FakeContext([["Let me see.", call("add", "c1", a=1, b=2)], "3"], TOOLS)

    output = await run(agent(), ctx)

    assert output == "3"
    assert results_in(ctx.views[1]) == [("c1", "3", False)]
    turn = ctx.views[1][1]
    assert (turn.text, [asked.call_id for asked in turn.tool_calls]) == ("Let me see.", ["c1"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (call("add", a=1), "argument 'b' is missing"),
        (call("add", a=1, b=2, c=3), "unknown argument 'c'"),
        (call("add", **{INVALID_ARGUMENTS_KEY: "{a: 1"}), "not valid JSON: {a: 1"),
        (call("subtract", a=1), "unknown tool 'subtract'; there are add, echo"),
    ],
)
async def test_the_models_mistakes_go_back_to_it(asked: Any, words: str) -> None:
    ctx = FakeContext([asked, "sorry"], TOOLS)

    assert await run(agent(), ctx) == "sorry"
    ((_, text, is_error),) = results_in(ctx.views[1])
    assert words in text
    assert is_error


async def test_the_cap_on_iterations_raises() -> None:
    ctx = FakeContext([call("add", a=1, b=1)], TOOLS)

    with pytest.raises(BudgetExhaustedError, match=r"react/helper reached max iterations limit \(3\)"):
        await run(agent(max_iterations=3), ctx)

    assert len(ctx.views) == 3
    assert ctx.replies == []


async def test_initial_tool_choice_is_for_the_first_call_of_a_message_alone() -> None:
    ctx = FakeContext([call("add", a=1, b=1), call("add", a=1, b=1), "one", "two"], TOOLS)

    await run(agent(initial_tool_choice="add", base_options=GenerationOptions(temperature=0.5)), ctx, ask(), ask())

    assert [options and options.tool_choice for options in ctx.options] == ["add", None, None, "add"]
    assert {options and options.temperature for options in ctx.options} == {0.5}


async def test_options_are_built_once_and_show_all_tools() -> None:
    ctx = FakeContext([call("add", a=1, b=1), call("add", a=1, b=1), "done"], TOOLS)

    await run(agent(), ctx)

    assert len({id(options) for options in ctx.options}) == 1
    assert ctx.options[0] is not None
    assert [spec["name"] for spec in ctx.options[0].tool_schemas] == ["add", "echo", "pay", "whoami"]


async def test_own_base_options_are_left_alone() -> None:
    base = GenerationOptions(max_tokens=5, tools=[add.spec])
    digests = base.digest, base.tools_digest
    ctx = FakeContext(["x"])

    await run(agent(base_options=base, initial_tool_choice="required"), ctx)

    options = ctx.options[0]
    assert options is not None
    assert [spec["name"] for spec in options.tool_schemas] == ["add"]
    assert options.digest != base.digest
    assert digests == (base.digest, base.tools_digest)


async def test_the_model_sees_a_view_and_history_keeps_everything() -> None:
    history = InMemoryHistoryProvider()
    pipeline = CompactionPipeline(SlidingWindowCompaction(4))
    made = agent(context=ContextConfig(history, pipeline), system_instructions="Be brief.")
    ctx = FakeContext([call("add", f"c{number}", a=1, b=1) for number in range(6)] + ["done"], TOOLS)

    await run(made, ctx, ask("the task"))

    assert max(len(view) for view in ctx.views) == 4
    assert [turn.text for turn in ctx.views[-1]][:2] == ["Be brief.", "the task"]
    assert await history.count(AGENT, "session-1") == 1 + 2 * 6 + 1


async def test_cancellation_is_seen_before_the_next_call() -> None:
    ctx = FakeContext([lambda _: ctx.meta.cancellation.cancel("enough") or call("add", a=1, b=1)], TOOLS)

    with pytest.raises(CancellationError, match="enough"):
        await run(agent(), ctx)

    assert ctx.effects == [("turn1", "llm")]


# --- parallel calls


async def test_calls_of_a_turn_run_at_once_and_keep_their_places() -> None:
    arrived: dict[str, asyncio.Event] = {label: asyncio.Event() for label in "abc"}
    finished: list[str] = []

    async def last_first(label: str) -> None:
        arrived[label].set()
        async with asyncio.timeout(BOUND_S):
            for other in "abc":  # nobody goes on before all have started
                await arrived[other].wait()
            while len(finished) < "cba".index(label):
                await asyncio.sleep(0)
        finished.append(label)

    script = [[call("echo", f"id-{label}", label=label) for label in "abc"], "done"]
    ctx = FakeContext(script, TOOLS, on_tool=last_first)

    await run(agent(), ctx)

    assert finished == ["c", "b", "a"]
    assert results_in(ctx.views[1]) == [("id-a", "a", False), ("id-b", "b", False), ("id-c", "c", False)]
    assert ctx.effects == [
        ("turn1", "llm"),
        ("turn1.call0", "echo"),
        ("turn1.call1", "echo"),
        ("turn1.call2", "echo"),
        ("turn2", "llm"),
    ]
    assert ctx.call_ids == {"turn1.call0": "id-a", "turn1.call1": "id-b", "turn1.call2": "id-c"}


async def test_a_single_call_has_the_same_place() -> None:
    ctx = FakeContext([call("add", "c1", a=1, b=1), "done"], TOOLS)

    await run(agent(), ctx)

    assert ctx.effects[1] == ("turn1.call0", "add")
    assert ctx.call_ids == {"turn1.call0": "c1"}


async def test_at_most_so_many_calls_at_once() -> None:
    running, most = 0, 0

    async def count(_: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    script = [[call("echo", str(number), label="x") for number in range(20)], "done"]
    ctx = FakeContext(script, TOOLS, on_tool=count)

    await run(agent(max_parallel_tools=3), ctx)

    assert most == 3
    assert len(results_in(ctx.views[1])) == 20


@pytest.mark.parametrize("failure", [DeterminismError("changed"), LeaseLostError("r", 1), SuspendInterrupt()])
async def test_started_calls_end_before_a_failure_is_passed_on_and_no_other_starts(failure: BaseException) -> None:
    ended: list[str] = []

    async def on_tool(label: str) -> None:
        if label == "bad":
            raise failure
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(label)

    labels = ["good", "bad", "late"]
    ctx = FakeContext([[call("echo", label, label=label) for label in labels]], TOOLS, on_tool=on_tool)

    with pytest.raises(type(failure)):
        await run(agent(max_parallel_tools=2), ctx)

    assert ended == ["good"]
    assert [place for place, _ in ctx.effects] == ["turn1", "turn1.call0", "turn1.call1"]


async def test_a_suspension_goes_before_an_error() -> None:
    async def on_tool(label: str) -> None:
        await asyncio.sleep(0)
        raise SuspendInterrupt if label == "waits" else DeterminismError("x")

    labels = ["fails", "waits"]
    ctx = FakeContext([[call("echo", label, label=label) for label in labels]], TOOLS, on_tool=on_tool)

    with pytest.raises(SuspendInterrupt):
        await run(agent(), ctx)


async def test_a_cancelled_task_takes_its_calls_along() -> None:
    started = asyncio.Event()

    async def hang(_: str) -> None:
        started.set()
        await asyncio.Event().wait()

    ctx = FakeContext([[call("echo", label, label=label) for label in "ab"]], TOOLS, on_tool=hang)
    task = asyncio.create_task(run(agent(), ctx))
    await asyncio.wait_for(started.wait(), BOUND_S)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, BOUND_S)
    assert [other for other in asyncio.all_tasks() if other is not asyncio.current_task()] == []


# --- several messages


async def test_later_messages_of_an_inbox_have_places_of_their_own_and_see_the_earlier_ones() -> None:
    made, history = remembering()
    ctx = FakeContext(["one", call("add", a=1, b=1), "two"], TOOLS)

    output = await run(made, ctx, ask("first"), ask("second"))

    assert output == "two"
    assert [reply for _, reply in ctx.replies] == ["one", "two"]
    assert [place for place, _ in ctx.effects] == ["turn1", "msg2.turn1", "msg2.turn1.call0", "msg2.turn2"]
    assert [turn.text for turn in ctx.views[1]] == ["first", "one", "second"]
    assert await stored(history) == [
        "user:first",
        "assistant:one",
        "user:second",
        "assistant:",
        "tool:2",
        "assistant:two",
    ]


async def test_without_a_session_of_the_context_the_messages_conversation_counts() -> None:
    made, history = remembering()

    await run(made, FakeContext(["a", "b"], session_id=""), ask("1", correlation_id="x"), ask("2", correlation_id="y"))

    assert await stored(history, "x") == ["user:1", "assistant:a"]
    assert await stored(history, "y") == ["user:2", "assistant:b"]


async def test_the_contexts_session_goes_before_the_messages() -> None:
    made, history = remembering()

    await run(made, FakeContext(), ask(correlation_id="x"))

    assert await history.count(AGENT, "x") == 0
    assert await history.count(AGENT, "session-1") == 2


# --- history


async def test_a_second_run_sees_the_first_and_another_session_does_not() -> None:
    made, _ = remembering()
    await run(made, FakeContext(["hi"], run_id="r1"), ask("I am Ada"))
    same, other = FakeContext(run_id="r2"), FakeContext(run_id="r3", session_id="session-2")

    await run(made, same, ask("who am I?"))
    await run(made, other, ask("who am I?"))

    assert [turn.text for turn in same.views[0]] == ["I am Ada", "hi", "who am I?"]
    assert [turn.text for turn in other.views[0]] == ["who am I?"]


async def test_turns_are_stored_as_they_emerge() -> None:
    made, history = remembering()
    counts: list[int] = []

    async def count(_: Any) -> None:
        counts.append(await history.count(AGENT, "session-1"))

    ctx = FakeContext([call("echo", label="x"), "done"], TOOLS, on_tool=count)
    await run(made, ctx)

    assert counts == [2]  # the user's and the assistant's, while the tool runs
    assert await history.count(AGENT, "session-1") == 4


async def test_turns_are_kept_when_the_cap_is_reached() -> None:
    made, history = remembering(max_iterations=2)

    with pytest.raises(BudgetExhaustedError):
        await run(made, FakeContext([call("add", a=1, b=1)], TOOLS), ask("task"))

    assert await stored(history) == ["user:task", "assistant:", "tool:2", "assistant:", "tool:2"]


async def test_turns_are_kept_when_the_model_fails() -> None:
    made, history = remembering()

    with pytest.raises(ConnectionError):
        await run(made, FakeContext([call("add", a=1, b=1), ConnectionError("gone")], TOOLS), ask("task"))

    assert await stored(history) == ["user:task", "assistant:", "tool:2"]


async def test_a_replay_shows_the_same_and_stores_nothing_twice() -> None:
    made, history = remembering()
    await run(made, FakeContext(["hi"], run_id="r0"), ask("before"))
    first = FakeContext([call("add", a=1, b=1), ConnectionError("the worker died")], TOOLS, run_id="r1")
    with pytest.raises(ConnectionError):
        await run(made, first, ask("task"))

    again = FakeContext([call("add", a=1, b=1), "2"], TOOLS, run_id="r1")
    await run(made, again, ask("task"))

    assert again.views == first.views
    assert await stored(history) == [
        "user:before",
        "assistant:hi",
        "user:task",
        "assistant:",
        "tool:2",
        "assistant:2",
    ]


async def test_the_next_run_sees_an_interrupted_call_closed() -> None:
    made, _ = remembering()

    async def die(_: str) -> None:
        raise LeaseLostError("r1", 1)

    with pytest.raises(LeaseLostError):
        await run(made, FakeContext([call("add", "c1", a=1, b=1)], TOOLS, run_id="r1", on_tool=die), ask("task"))

    ctx = FakeContext(run_id="r2")
    await run(made, ctx, ask("and?"))

    ((call_id, text, is_error),) = results_in(ctx.views[0])
    assert (call_id, is_error) == ("c1", True)
    assert text.startswith("interrupted")


@pytest.mark.parametrize(
    ("ending", "left"),
    [("done", ["kept"]), (ValueError("x"), ["kept"]), (LeaseLostError("r", 1), ["kept", "hello"])],
)
async def test_turns_of_a_run_alone_go_when_it_ends_but_not_when_it_moves_on(ending: Any, left: list[str]) -> None:
    history = InMemoryHistoryProvider()
    await history.append(AGENT, "session-1", ChatMessage.of("user", "kept"), run_id="r0")
    made = agent(context=ContextConfig(history, retention="run"))

    with contextlib.suppress(ValueError, LeaseLostError):
        await run(made, FakeContext([ending], TOOLS, run_id="r1"))

    assert [turn.text for turn in await history.get(AGENT, "session-1")] == left


# --- budgets


@pytest.mark.parametrize(
    ("budget", "calls", "words"),
    [
        (ExecutionBudget(max_turns=2), 2, "model calls"),
        (ExecutionBudget(max_tokens=30), 2, "tokens"),
        (ExecutionBudget(max_tokens=20), 2, "tokens"),
        (ExecutionBudget(max_cost_usd=0.01), 1, "US dollars"),
    ],
)
async def test_a_run_stops_at_its_budget(budget: ExecutionBudget, calls: int, words: str) -> None:
    ctx = FakeContext([call("add", a=1, b=1)], TOOLS)  # each call: 15 tokens, 1 cent

    with pytest.raises(BudgetExhaustedError, match=words):
        await run(agent(budget=budget), ctx)

    assert len(ctx.views) == calls


async def test_a_run_stops_at_its_deadline() -> None:
    async def slow(_: str) -> None:
        ctx.clock += timedelta(seconds=6)

    ctx = FakeContext([call("add", a=1, b=1)], TOOLS, on_tool=slow)

    with pytest.raises(BudgetExhaustedError, match="seconds"):
        await run(agent(budget=ExecutionBudget(deadline_s=10)), ctx)

    assert len(ctx.views) == 2


async def test_every_run_has_a_budget_of_its_own() -> None:
    made = agent(budget=ExecutionTracker(ExecutionBudget(max_turns=1)))

    outputs = await asyncio.gather(*(run(made, FakeContext([str(number)])) for number in range(5)))

    assert outputs == ["0", "1", "2", "3", "4"]


# --- approval


async def test_a_risky_tool_never_runs_without_an_approver() -> None:
    ctx = FakeContext([call("pay", amount=3), "not allowed"], TOOLS)

    await run(agent(), ctx)

    assert ("turn1.call0", "pay") not in ctx.effects
    ((_, text, is_error),) = results_in(ctx.views[1])
    assert "needs a person's approval and nobody is configured to give it" in text
    assert is_error


@pytest.mark.parametrize(("decision", "text"), [(True, "paid 3"), (False, "denied: pay was not approved")])
async def test_a_risky_tool_runs_as_decided(decision: bool, text: str) -> None:
    ctx = FakeContext([call("pay", amount=3), "done"], TOOLS)

    await run(agent(approval_handler=lambda *_: decision), ctx)

    assert results_in(ctx.views[1])[0][1].startswith(text)
    assert (("turn1.call0", "pay") in ctx.effects) is decision
    assert ctx.logged[0][0] == "approval"


async def test_safe_tools_are_not_asked_about() -> None:
    asked: list[str] = []
    ctx = FakeContext([call("add", a=1, b=1), "done"], TOOLS)

    await run(agent(approval_handler=lambda name, *_: bool(asked.append(name))), ctx)

    assert asked == []


async def test_the_tier_can_be_lowered() -> None:
    ctx = FakeContext([call("add", a=1, b=1), "done"], TOOLS)

    await run(agent(approval_required_risk="safe"), ctx)

    assert results_in(ctx.views[1])[0][1].startswith("denied")


# --- surroundings


async def test_tools_know_whose_task_they_are() -> None:
    ctx = FakeContext([call("whoami"), "done"], TOOLS)

    await run(agent(name="Helper"), ctx, ask(metadata={"parent_agent_id": "orchestrator/team"}))

    assert results_in(ctx.views[1])[0][1] == "react/helper Helper session-1 orchestrator/team"


async def test_answers_go_to_who_asked_or_to_the_topic() -> None:
    made = agent(output_topic=TopicId("news", "sport"))
    asked, told = FakeContext(["a"]), FakeContext(["b"])

    await run(made, asked, ask(reply_to="run-0"))
    output = await run(made, told)

    assert asked.replies[0][1] == {"text": "a"}
    assert (told.emitted, output) == ([(TopicId("news", "sport"), {"text": "b"})], "b")


async def test_many_runs_of_one_agent_do_not_mix() -> None:
    made, history = remembering(system_instructions="Be brief.")

    async def one(number: int) -> FakeContext:
        ctx = FakeContext(
            [call("echo", label=str(number)), f"answer {number}"],
            TOOLS,
            run_id=f"r{number}",
            session_id=f"s{number}",
            on_tool=lambda _: asyncio.sleep(0),
        )
        assert await run(made, ctx, ask(f"question {number}")) == f"answer {number}"
        return ctx

    contexts = await asyncio.gather(*(one(number) for number in range(50)))

    for number, ctx in enumerate(contexts):
        assert [turn.text for turn in ctx.views[1]] == ["Be brief.", f"question {number}", "", str(number)]
        assert await history.count(AGENT, f"s{number}") == 4


async def test_the_work_of_a_turn_does_not_grow_with_the_turns() -> None:
    class Counting(InMemoryHistoryProvider):
        turns = 0

        async def append_many(self, agent_id: Any, session_id: Any, messages: Any, **options: Any) -> None:
            self.turns += len(messages)
            await super().append_many(agent_id, session_id, messages, **options)

    history = Counting()
    made = agent(context=ContextConfig(history, SlidingWindowCompaction(10)), max_iterations=200)
    ctx = FakeContext([call("add", a=1, b=1)] * 199 + ["done"], TOOLS)

    await run(made, ctx)

    assert history.turns == 1 + 199 * 2 + 1
    assert {len(view) for view in ctx.views[20:]} <= {9, 10}


# --- building


async def test_an_agent_is_an_agent() -> None:
    made = agent()

    assert isinstance(made, Agent)
    assert made.id == AGENT
    assert agent(id=AgentId("bot", "x", "acme")).id == agent(id="acme/bot/x").id
    assert made.tools.names() == ["add", "echo", "pay", "whoami"]


async def test_the_minimal_agent_needs_a_key_and_a_model() -> None:
    ctx = FakeContext(["hi"])

    assert await ReActAgent("helper", model=Model()).run(ctx, [ask()]) == "hi"  # type: ignore[arg-type]
    assert ctx.options[0] is not None
    assert ctx.options[0].tools == []


async def test_spec_is_json_and_changes_with_the_agent() -> None:
    def spec(**options: Any) -> str:
        return json.dumps(agent(**options).spec(), sort_keys=True)

    assert json.loads(spec())["model"] == "fake-model"
    assert json.loads(spec())["tools"][2]["risk"] == "high"
    assert spec() == spec()
    variants = [
        {"system_instructions": "x"},
        {"max_iterations": 3},
        {"tools": [add]},
        {"budget": ExecutionBudget(max_turns=1)},
        {"base_options": GenerationOptions(temperature=1)},
        {"initial_tool_choice": "add"},
        {"output_topic": TopicId("news")},
        {"approval_required_risk": "critical"},
        {"context": ContextConfig(retention="none")},
        {"name": "Other"},
    ]
    assert len({spec(), *(spec(**variant) for variant in variants)}) == 1 + len(variants)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": None}, "LLMFactory"),
        ({"model": "gpt-4o"}, "must be a ChatModel"),
        ({"max_iterations": 0}, "max_iterations is a whole number from 1"),
        ({"max_iterations": "3"}, "max_iterations is a whole number from 1"),
        ({"max_parallel_tools": 0}, "max_parallel_tools is a whole number from 1"),
        ({"initial_tool_choice": "search"}, "is no tool of react/helper; it has add, echo, pay, whoami"),
        ({"initial_tool_choice": "required", "tools": []}, "it has none"),
        ({"approval_required_risk": "huge"}, "huge"),
        ({"tools": "calculator"}, "tools is a list"),
    ],
)
async def test_wrong_options_are_refused_with_the_mend(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError, InvalidInputError)) as caught:
        agent(**options)

    assert words in str(caught.value)


async def test_factory_wires_the_everyday_agent() -> None:
    history = InMemoryHistoryProvider()
    made = create_assistant_agent(
        model_client=Model(), tools=[add], system_instructions="Be brief.", memory=history, max_iterations=4
    )

    assert made.id == AgentId("react", "assistant")
    assert made.context.history is history
    assert made.context.pipeline.reach == 100  # type: ignore[attr-defined]
    assert (made.max_iterations, made.tools.names()) == (4, ["add"])


async def test_content_that_is_no_text_goes_back_whole() -> None:
    image = {"type": "image", "url": "https://example.org/a.png"}

    class Camera(FakeContext):
        async def tool(self, name: str, /, **arguments: Any) -> Any:
            from ravi_django.kernel import ToolExecutionResult

            return ToolExecutionResult.model_validate({"content": [image, {"type": "text", "text": "a cat"}]})

    ctx = Camera([call("look"), "a cat"], TOOLS)

    await run(agent(), ctx)

    (block,) = ctx.views[1][-1].content
    assert isinstance(block, ToolResultBlock)
    assert [inner.type for inner in block.content] == ["image", "text"]
    assert block.content[1] == TextBlock(text="a cat")
