"""Generator agents without a database: what may be yielded, how a turn ends, and whose the state is."""

import asyncio
from collections import OrderedDict, defaultdict, deque

import pytest

from ravi_django.agents import AgentTool, ReActAgent, Toolbox, flow, tool
from ravi_django.agents.flow import BaseAgentProxy, ChatOutput, SubagentCall, ToolCall, TurnEnd, WaitForInput
from ravi_django.agents.tools.delegate import description_of
from ravi_django.agents.tools.toolbox import sub_agents_of
from ravi_django.kernel import (
    AgentId,
    ChatMessage,
    ChatPayload,
    InvalidInputError,
    Message,
    ResultInvalidError,
    SuspendInterrupt,
)
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.cases import case
from tests.support.fake_context import FakeContext
from tests.support.world import get_agent, register, spec_of, unregister

ID = AgentId("agent", "generator")


def of(function, **options):
    return type("Generator", (BaseAgentProxy,), {"next_turn": function})("generator", **options)


def said(text="hi", **fields):
    return Message(target=ID, payload=ChatPayload(message=ChatMessage.of("user", text)), **fields)


def run(agent, *messages, ctx=None):
    ctx = ctx or FakeContext(tools=agent.tools)
    returned = asyncio.run(agent.run(ctx, list(messages or [said()])))
    return returned, ctx


def test_the_facade_has_the_names_of_the_seed():
    assert {
        "BaseAgentProxy", "Prompt", "TurnEnd", "WaitForInput", "ResumeWithInput", "PauseForChildResult",
        "PauseForInputResult", "FinishAgentResult", "HumanInput",
    } <= set(dir(flow))  # fmt: skip


def test_the_turns_end_is_the_answer_and_nothing_behind_it_runs():
    ran = []

    async def story(self, prompt):
        try:
            yield TurnEnd(f"heard {prompt.text}")
            ran.append("behind")
            yield TurnEnd("again")
        finally:
            ran.append("finally")

    returned, ctx = run(of(story))
    assert (returned, ran, [result for _, result in ctx.replies]) == ("heard hi", ["finally"], ["heard hi"])

    # a reply to an asker is a text under its name
    async def story(self, prompt):
        yield TurnEnd("yes")

    _, ctx = run(of(story), said(reply_to="run-0"))
    assert [result for _, result in ctx.replies] == [{"text": "yes"}]

    # an empty turn answers with nothing
    async def story(self, prompt):
        if prompt.text == "never":
            yield TurnEnd("something")

    assert run(of(story))[0] == ""


def test_without_an_end_the_last_output_is_the_answer():
    async def story(self, prompt):
        yield ChatOutput("first ")
        yield ToolCall("double", {"number": 2})
        yield ChatOutput("se")
        yield ChatOutput("cond")

    @tool
    def double(number: int) -> int:
        """Double."""
        return 2 * number

    assert run(of(story, tools=[double]))[0] == "second"

    # a plain generator does as well
    def plain(self, prompt):
        try:
            result = yield ToolCall("double", {"number": 4})
            yield TurnEnd(result.text)
        finally:
            self.ctx.replies.append("closed")

    returned, ctx = run(of(plain, tools=[double]))
    assert returned == "8"
    assert ctx.replies[0] == "closed"  # before the answer goes out


@pytest.mark.parametrize("event", [None, "text", TurnEnd, {"a": 1}, 3])
def test_what_may_not_be_yielded_is_refused_at_the_yield_with_what_may(event):
    caught = []

    async def story(self, prompt):
        try:
            yield event
        except TypeError as error:
            caught.append(str(error))
            raise

    with pytest.raises(TypeError, match="it may yield ChatOutput"):
        run(of(story))
    assert len(caught) == 1


def test_names_addresses_and_what_cannot_be_one():
    assert BaseAgentProxy("Weather reporter").id == AgentId("agent", "Weather_reporter")
    assert BaseAgentProxy("x", id="flow/weather").id == AgentId("flow", "weather")
    with pytest.raises(InvalidInputError, match="name must be a string"):
        BaseAgentProxy(" ")
    with pytest.raises(TypeError, match="model must be a model's name"):
        BaseAgentProxy("x", model=7)
    # the spec says what a user is shown
    agent = BaseAgentProxy(
        "x", welcome="Hello!", prompts={"weather": "How is the weather?"}, description="Reports.",
        result_model=list[int]
    )  # fmt: skip
    spec = spec_of(agent)
    assert (spec["welcome"], spec["starter_prompts"]) == ("Hello!", ["How is the weather?"])
    assert (spec["description"], spec["result_schema"]["type"]) == ("Reports.", "array")

    # code that is no generator is told so
    async def story(self, prompt):
        return "hi"

    with pytest.raises(TypeError, match="next_turn is not a generator"):
        run(of(story))
    with pytest.raises(NotImplementedError, match="needs the async generator method"):
        run(BaseAgentProxy("generator"))
    # the context is there inside a request alone
    agent = BaseAgentProxy("generator")
    with pytest.raises(RuntimeError, match=r"use it inside next_turn"):
        _ = agent.ctx
    with pytest.raises(RuntimeError, match="inside next_turn"):
        asyncio.run(agent.window())


def test_a_finally_block_may_not_yield():
    async def story(self, prompt):
        try:
            yield TurnEnd("one")
        finally:
            yield TurnEnd("two")

    ctx = FakeContext()
    with pytest.raises(TypeError, match="do not yield in finally"):
        run(of(story), ctx=ctx)
    assert ctx.replies == []


@pytest.mark.parametrize("stop", [SuspendInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("plain", [False, True])
def test_what_ends_the_lease_goes_through_the_generator_and_on(stop, plain):
    seen = []

    class Stopped(FakeContext):
        async def tool(self, name, /, **arguments):
            raise stop

    async def story(self, prompt):
        try:
            yield ToolCall("any")
        except Exception:
            seen.append("swallowed")
        except BaseException as error:
            seen.append(type(error).__name__)
            yield TurnEnd("swallowed")

    def plain_story(self, prompt):
        try:
            yield ToolCall("any")
        finally:
            seen.append(type(stop).__name__)

    async def main():
        with pytest.raises(type(stop)):
            await of(plain_story if plain else story).run(Stopped(), [said()])

    asyncio.run(main())
    assert seen == [type(stop).__name__]


def test_an_invalid_result_is_raised_at_the_end_and_may_be_mended():
    async def story(self, prompt):
        try:
            yield TurnEnd("many")
        except ResultInvalidError:
            if prompt.text == "raise":
                raise
            yield TurnEnd("[1, 2]")

    agent = of(story, result_model=list[int])
    assert run(agent)[0] == "[1,2]"
    with pytest.raises(ResultInvalidError, match="ended its turn with an invalid"):
        run(agent, said("raise"))


def test_what_a_request_sets_on_itself_shows_in_no_other():
    class Noting(BaseAgentProxy):
        of_the_class = []

        async def next_turn(self, prompt):
            self.mine = prompt.text
            self.notes["deep"].append(prompt.text)
            self.of_the_class.append(prompt.text)
            yield TurnEnd({"notes": self.notes, "class": self.of_the_class})

    agent = Noting("noting")
    agent.notes = {"deep": []}
    agent.notes["self"] = [agent.notes]  # a circle

    returned, _ = run(agent, said("one"), said("two"))
    assert returned["notes"]["deep"] == ["two"]
    assert returned["notes"]["self"][0] is returned["notes"]
    assert (returned["class"], agent.notes["deep"], Noting.of_the_class) == (["two"], [], [])
    assert not hasattr(agent, "mine")


def test_a_request_may_be_given_a_copy_of_ones_own_making():
    class Client:
        pass

    class Own(BaseAgentProxy):
        def for_request(self):
            mine = super().for_request()
            mine.client = Client()
            return mine

        async def next_turn(self, prompt):
            yield TurnEnd({"own": self.client is not agent.client, "shared": self.pool is agent.pool})

    agent = Own("own")
    agent.client, agent.pool = Client(), Client()
    assert run(agent)[0] == {"own": True, "shared": True}
    # a copy keeps what its kind has beside the values
    agent = of(None)
    agent.seen, agent.last, agent.names = defaultdict(set), deque([[1]], 2), Names([[1]])
    agent.names.title, agent.names[0] = "who", agent.names  # a circle
    agent.seen["self"] = agent.seen
    mine = agent.for_request()
    assert (mine.seen["new"], mine.last.maxlen, mine.names.title) == (set(), 2, "who")
    assert (mine.names[0] is mine.names, mine.seen["self"] is mine.seen) == (True, True)
    assert (mine.names is agent.names, "new" in agent.seen) == (False, False)


def test_a_question_of_no_form_is_refused():
    async def story(self, prompt):
        with pytest.raises(InvalidInputError, match="request"):
            yield WaitForInput({})
        with pytest.raises(InvalidInputError, match="choices"):
            yield WaitForInput({"a": "A?"}, choices=["x", "y"])
        with pytest.raises(InvalidInputError, match="type/key"):
            yield SubagentCall("nobody", "work")

    class Asking(FakeContext):
        async def ask_human(self, *args, **options):
            raise AssertionError

    run(of(story), ctx=Asking())


class Poet(BaseAgentProxy):
    """Writes poems. In any metre.

    At length.
    """


def test_an_agent_given_as_a_tool_becomes_one():
    poet = Poet("poet")
    box = Toolbox([poet])
    (made,) = box.all()
    assert isinstance(made, AgentTool)
    assert (made.name, made.agent, made.agent_id) == ("handoff_poet", poet, poet.id)
    assert made.description.endswith("Writes poems.")
    with pytest.raises(TypeError, match="tools must be a list"):
        Toolbox.of(poet)
    # an agent is described by what it says of itself
    for agent, words in [
        (BaseAgentProxy("a", description="Does A."), "Does A."),
        (Poet("b"), "Hand a task to the agent agent/b and get its answer. Writes poems."),
        (BaseAgentProxy("c", instructions="You do C. And D."), "… You do C."),
        (ReActAgent("d", model=ScriptedModel(["x"]), system_instructions="Be D.\nAlways."), "… Be D."),
        (ReActAgent("e", model=ScriptedModel(["x"])), "Hand a task to the agent react/e and get its answer."),
    ]:
        with case(agent, words):
            words = words.replace("…", f"Hand a task to the agent {agent.id} and get its answer.")
            assert description_of(agent) == words


def test_agents_given_as_tools_are_registered_along_unless_known_by_themselves():
    inner, outer = Poet("inner"), None
    middle = BaseAgentProxy("middle", tools=[inner])
    outer = ReActAgent("outer", model=ScriptedModel(["x"]), tools=[middle])
    inner.tools.add(outer)  # a circle
    known = register(Poet("middle"))
    try:
        register(outer)

        assert sub_agents_of(outer) == [middle]
        assert get_agent(inner.id) is inner and get_agent("agent/middle") is known
        again = Poet("inner")
        register(ReActAgent("outer", model=ScriptedModel(["x"]), tools=[again]), replace=True)
        assert get_agent(inner.id) is again
    finally:
        for address in (inner.id, middle.id, outer.id):
            unregister(address)
    assert "agent/inner" not in world.known_addresses()


class Names(list):
    pass


class Counts(dict):
    pass


def test_what_lies_in_values_of_any_kind_is_the_requests_own():
    kinds = (lambda one: defaultdict(list, a=one), lambda one: OrderedDict(a=one), lambda one: Counts(a=one), dict)
    lists = (lambda one: deque([one], 3), lambda one: Names([one]), lambda one: [one])
    for place, make in [*(("a", make) for make in kinds), *((0, make) for make in lists)]:
        with case(place, make):

            class Noting(BaseAgentProxy):
                async def next_turn(self, prompt):
                    self.seen[place].append(prompt.text)
                    yield TurnEnd({"seen": self.seen[place], "kind": type(self.seen) is type(agent.seen)})

            agent = Noting("noting")
            agent.seen = {"a": []} if make is dict else make([])
            assert run(agent, said("one"), said("two"))[0] == {"seen": ["two"], "kind": True}
            assert agent.seen[place] == []
