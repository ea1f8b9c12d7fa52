"""The agents that this process can drive."""

from __future__ import annotations

import threading
from typing import Any

from ravi_django.kernel import Agent, AgentId, AgentNotFoundError, InvalidInputError
from ravi_django.kernel.canonical import digest_of

_agents: dict[str, Agent] = {}
_specs: dict[str, tuple[Agent, str, dict[str, Any]]] = {}
_lock = threading.Lock()


def register(agent: Agent) -> Agent:
    """Make an agent known under its address; a later one replaces an earlier. Returns the agent.

    Raises InvalidInputError when it has no `id: AgentId` or no async `run`.
    """
    if not isinstance(getattr(agent, "id", None), AgentId):
        raise InvalidInputError(f"{agent!r} needs an attribute id of type AgentId", field="id")
    if not callable(getattr(agent, "run", None)):
        raise InvalidInputError(f"agent {agent.id} needs a method: async def run(self, ctx, inbox)", field="run")
    with _lock:
        _agents[str(agent.id)] = agent
    return agent


def unregister(address: AgentId | str) -> None:
    with _lock:
        _agents.pop(str(address), None)


def get_agent(address: AgentId | str) -> Agent:
    """The agent object behind an address. Raises AgentNotFoundError."""
    try:
        return _agents[str(address)]
    except KeyError:
        raise AgentNotFoundError(address) from None


def known_addresses() -> list[str]:
    return list(_agents)


def pinned_spec(agent: Agent) -> tuple[str, dict[str, Any]]:
    """The digest of an agent's spec, and the spec. Computed once for an agent object."""
    known = _specs.get(str(agent.id))
    if known is None or known[0] is not agent:
        spec = spec_of(agent)
        known = _specs[str(agent.id)] = (agent, digest_of(spec), spec)
    return known[1], known[2]


def spec_of(agent: Agent) -> dict[str, Any]:
    """What an agent says of itself: JSON, kept with its runs and shown in the admin."""
    describe = getattr(agent, "spec", None)
    spec: dict[str, Any] = describe() if callable(describe) else {}
    return {"class": type(agent).__name__, **spec}
