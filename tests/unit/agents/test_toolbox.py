from typing import Any

import pytest

from ravi_django.agents import AgentTool, Toolbox, tool
from ravi_django.agents.tools.delegate import handoff_name
from ravi_django.kernel import AgentId, InvalidInputError, Risk, Tool, ToolRegistry
from tests.support.cases import case


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(risk="high")
def pay(amount: int) -> None: ...


@tool(name="add")
def other_add(a: int) -> int:
    return a


class Nameless(Tool): ...


def test_bad_entry_is_refused_with_the_mend() -> None:
    for entry, words in [
        ("calculator", "not a tool: 'calculator'"), (None, "not a tool"), (42, "not a tool"),
        (Nameless, "Nameless()"), (Nameless(), "set its `name` attribute"),
    ]:  # fmt: skip
        with case(entry, words):
            with pytest.raises((TypeError, ValueError)) as caught:
                Toolbox([entry])
            assert words in str(caught.value)
    # of refuses what should have been a list
    for single in [pay, add, "pay"]:
        with case(single), pytest.raises(TypeError, match=r"pass \[(pay|add)\]"):
            Toolbox.of(single)

    box = Toolbox([pay])
    assert Toolbox.of(box) is box
    assert (Toolbox.of([pay]).names(), Toolbox.of(found for found in box).names()) == (["pay"], ["pay"])
    assert Toolbox.of(None).names() == []
    # an empty toolbox is falsy yet a registry
    box = Toolbox()
    assert not box and Toolbox.of(box) is box
    assert isinstance(Toolbox(), ToolRegistry)


def test_a_toolbox_finds_tools_by_name_in_the_order_they_came() -> None:
    box = Toolbox([add, pay])
    assert box.names() == ["add", "pay"]
    assert box.get("pay") is pay and box.get("nothing") is None
    assert (box.all(), len(box)) == (list(box), 2)
    # plain function becomes a tool
    assert Toolbox([add]).get("add").description == "Add."
    # a later one under a name replaces it
    box = Toolbox([add, pay])
    box.add(other_add)
    assert box.get("add") is other_add
    assert box.names() == ["pay", "add"]
    # contains takes names and tools
    box = Toolbox([pay])
    assert "pay" in box and pay in box
    assert "add" not in box

    box = Toolbox([add, pay])
    assert (box.by_risk(Risk.HIGH), [found.name for found in box.by_risk("safe")]) == ([pay], ["add"])


class Worker:
    """Works."""

    def __init__(self, address: str) -> None:
        self.id = AgentId.parse(address)

    async def run(self, ctx: Any, inbox: Any) -> None: ...


def test_two_agents_of_one_tool_name_are_refused() -> None:
    for first, second in [("x/same", "y/same"), ("x/a.b", "x/a:b"), ("x/" + "k" * 70, "x/" + "k" * 71)]:
        with case(first, second):
            words = f"the agents {first} and {second} have the same tool name {handoff_name(AgentId.parse(first))}"
            with pytest.raises(InvalidInputError, match=words) as caught:
                Toolbox([Worker(first), Worker(second)])
            assert caught.value.field == "tools"
            with pytest.raises(InvalidInputError, match=words):
                Toolbox([AgentTool(first), AgentTool(second)])
    # the same agent may be said again
    again = AgentTool("x/same", "better words")
    assert Toolbox([Worker("x/same"), again]).all() == [again]
