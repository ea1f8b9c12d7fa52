"""The tools of an agent by name, and the agents that it uses."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from ravi_django.agents.tools.delegate import AgentTool, HandoffTool, is_agent
from ravi_django.agents.tools.function_tool import FunctionTool
from ravi_django.kernel import Agent, InvalidInputError, Risk, Tool, ToolRegistry


class Toolbox:
    """A ToolRegistry: tools by name in the order of `add`, which replaces an earlier tool of the name."""

    def __init__(self, tools: Iterable[Any] = ()) -> None:
        """Raises InvalidInputError if two different tools have one name, and as `add`."""
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            before = dict(self._tools)
            self.add(tool)
            name, last = next(reversed(self._tools.items()))
            if before.get(name, last) is not last and not isinstance(last, HandoffTool):  # an agent may be named again
                raise InvalidInputError(f"two tools have the name {name}; rename one of them", field="tools")

    @classmethod
    def of(cls, tools: ToolRegistry | Iterable[Any] | None) -> ToolRegistry:
        """A registry unchanged; a list (or None) as a Toolbox."""
        if isinstance(tools, ToolRegistry):
            return tools
        if isinstance(tools, Tool) or callable(tools) or isinstance(tools, str) or is_agent(tools):
            name = getattr(tools, "name", None) or getattr(tools, "__name__", None) or tools
            raise TypeError(f"tools must be a list or a Toolbox, not {tools!r}; pass [{name}]")
        return cls(tools or ())

    def add(self, tool: Any) -> None:
        """Add a tool, a plain function, or an agent (as an AgentTool). Raises TypeError or ValueError for other
        objects, InvalidInputError if another agent has the same tool name."""
        if is_agent(tool):
            tool = AgentTool(tool)
        elif callable(tool) and not (inspect.isclass(tool) or isinstance(tool, Tool)):
            tool = FunctionTool(tool)
        if inspect.isclass(tool) and issubclass(tool, Tool):
            raise TypeError(f"{tool.__name__} is a class; add an instance of it: {tool.__name__}()")
        if not isinstance(tool, Tool):
            raise TypeError(f"not a tool: {tool!r}; add a Tool, a function, or an agent")
        if not tool.name:
            raise ValueError(f"{type(tool).__name__} has no name; set its `name` attribute")
        other = self._tools.pop(tool.name, None)
        if isinstance(tool, HandoffTool) and isinstance(other, HandoffTool) and other.agent_id != tool.agent_id:
            raise InvalidInputError(
                f"the agents {other.agent_id} and {tool.agent_id} have the same tool name {tool.name}; change the "
                "key of one of them",
                field="tools",
            )
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return self._tools.get(name)

    def all(self) -> list[Tool]:
        """All tools."""
        return list(self._tools.values())

    def names(self) -> list[str]:
        """The names of all tools."""
        return list(self._tools)

    def by_risk(self, risk: Risk | str) -> list[Tool]:
        """The tools of exactly that risk. A tool whose risk is computed from the arguments counts as critical."""
        wanted = Risk(risk)
        return [tool for tool in self._tools.values() if tool.risk == wanted]

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return (name.name if isinstance(name, Tool) else name) in self._tools

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self._tools)})"


def sub_agents_of(agent: Agent) -> list[Agent]:
    """The agent objects among an agent's tools; they are registered with it."""
    with suppress(TypeError, ValueError):  # a custom agent's `tools` may be something else
        tools = Toolbox.of(getattr(agent, "tools", None)).all()
        agents: list[Any] = [getattr(tool, "agent", None) for tool in tools]
        return [agent for agent in agents if is_agent(agent)]
    return []
