"""Agents that other agents use: which objects are agents, what a model is told of one, whom an agent brings along."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from ravi_django.kernel import Agent, AgentId, Tool

_MOST = 300  # characters of a sentence that describes an agent


def is_agent(value: Any) -> bool:
    """Whether it is an object that can be registered as an agent; a tool is none."""
    is_object = not isinstance(value, type | Tool)
    return is_object and isinstance(getattr(value, "id", None), AgentId) and callable(getattr(value, "run", None))


def description_of(agent: Agent) -> str:
    """What a model is told of an agent: its `description`; else the first sentence of its class's docstring (not of
    the library's own classes), or of its instructions; else its address alone."""
    described = getattr(agent, "description", None)
    if isinstance(described, str) and described.strip():
        return described.strip()
    words = f"Hand a task to the agent {agent.id} and get its answer."
    said = _docstring(type(agent)) or _instructions(agent)
    return f"{words} {said}" if said else words


def _docstring(cls: type) -> str:
    doc = cls.__dict__.get("__doc__")
    is_ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    if not isinstance(doc, str) or is_ours or doc.startswith(f"{cls.__name__}("):  # a dataclass's own
        return ""
    return _first_sentence(doc)


def _instructions(agent: Agent) -> str:
    for name in ("system_instructions", "instructions"):
        said = getattr(agent, name, None)
        if isinstance(said, str) and said.strip():
            return _first_sentence(said)
    return ""


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.!?])\s|\n\s*\n", " ".join(text.strip().split(" ")), maxsplit=1)[0]
    line = " ".join(sentence.split())
    return line if len(line) <= _MOST else f"{line[:_MOST]}…"


def sub_agents_of(agent: Agent) -> list[Agent]:
    """The agents that were given to this one as objects: to be registered along with it."""
    from ravi_django.agents.toolbox import Toolbox

    with suppress(TypeError, ValueError):  # an agent of one's own may mean something else by `tools`
        tools = Toolbox.of(getattr(agent, "tools", None)).all()
        given: list[Any] = [getattr(tool, "agent", None) for tool in tools]
        return [agent for agent in given if is_agent(agent)]
    return []
