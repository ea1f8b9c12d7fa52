from typing import Any

import pytest

from ravi_django.agents import AgentTool, Toolbox, tool
from ravi_django.agents.delegate import handoff_name
from ravi_django.kernel import AgentId, InvalidInputError, Risk, Tool, ToolRegistry


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(risk="high")
def pay(amount: int) -> None: ...


@tool(name="add")
def other_add(a: int) -> int:
    return a


class Nameless(Tool): ...


def test_is_a_tool_registry() -> None:
    assert isinstance(Toolbox(), ToolRegistry)


def test_tools_are_found_by_name_in_the_order_they_came() -> None:
    box = Toolbox([add, pay])

    assert box.names() == ["add", "pay"]
    assert box.get("pay") is pay
    assert box.get("nothing") is None
    assert box.all() == list(box)
    assert len(box) == 2


def test_plain_function_becomes_a_tool() -> None:
    made = Toolbox([add]).get("add")

    assert made is not None
    assert made.description == "Add."


def test_last_one_under_a_name_wins() -> None:
    box = Toolbox([add, pay, other_add])

    assert box.get("add") is other_add
    assert box.names() == ["pay", "add"]


def test_contains_takes_names_and_tools() -> None:
    box = Toolbox([pay])

    assert "pay" in box
    assert pay in box
    assert "add" not in box


def test_by_risk() -> None:
    box = Toolbox([add, pay])

    assert box.by_risk(Risk.HIGH) == [pay]
    assert [found.name for found in box.by_risk("safe")] == ["add"]


def test_an_empty_toolbox_is_falsy_yet_a_registry() -> None:
    box = Toolbox()

    assert not box
    assert Toolbox.of(box) is box


def test_of_takes_registries_lists_and_none() -> None:
    box = Toolbox([pay])

    assert Toolbox.of(box) is box
    assert Toolbox.of([pay]).names() == ["pay"]
    assert Toolbox.of(found for found in box).names() == ["pay"]
    assert Toolbox.of(None).names() == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("calculator", "not a tool: 'calculator'"),
        (None, "not a tool"),
        (42, "not a tool"),
        (Nameless, "Nameless()"),
        (Nameless(), "set its `name` attribute"),
    ],
)
def test_bad_entry_is_refused_with_the_mend(entry: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Toolbox([entry])

    assert words in str(caught.value)


@pytest.mark.parametrize("single", [pay, add, "pay"])
def test_of_refuses_what_should_have_been_a_list(single: Any) -> None:
    with pytest.raises(TypeError, match=r"write \[(pay|add)\]"):
        Toolbox.of(single)


class Worker:
    """Works."""

    def __init__(self, address: str) -> None:
        self.id = AgentId.parse(address)

    async def run(self, ctx: Any, inbox: Any) -> None: ...


@pytest.mark.parametrize(
    ("first", "second"),
    [("x/same", "y/same"), ("x/a.b", "x/a:b"), ("x/" + "k" * 70, "x/" + "k" * 71)],
)
def test_two_agents_of_one_tool_name_are_refused(first: str, second: str) -> None:
    words = f"the agents {first} and {second} would both be the tool {handoff_name(AgentId.parse(first))}"
    with pytest.raises(InvalidInputError, match=words) as caught:
        Toolbox([Worker(first), Worker(second)])

    assert caught.value.field == "tools"
    with pytest.raises(InvalidInputError, match=words):
        Toolbox([AgentTool(first), AgentTool(second)])


def test_the_same_agent_may_be_said_again() -> None:
    again = AgentTool("x/same", "better words")

    assert Toolbox([Worker("x/same"), again]).all() == [again]
