"""Agents: what one may run in this process."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ravi_django import access
from ravi_django.agents.spec.spec import CLASSES, REACT
from ravi_django.api.base import ApiView
from ravi_django.api.openapi import documented, parameter
from ravi_django.api.pagination import AddressPages
from ravi_django.kernel import AgentId, AgentNotFoundError
from ravi_django.models import Agent
from ravi_django.runtime.catalog import specs
from ravi_django.runtime.catalog.registry import get_agent, known_addresses, spec_of
from ravi_django.services import shapes


class AgentsView(ApiView):
    @documented(
        "agents_list",
        ok={200: shapes.AgentPageSerializer},
        errors=[400],
        parameters=[parameter("limit", "Agents a page, 50 when absent, at most 200.", kind=int)],
    )
    def get(self, request: Any) -> Response:
        """What the user may run, by address."""
        rows = access.agents_seen(request.user)
        pages = AddressPages(request, [(name, name) for name in rows])
        return pages.response(lambda name: _shown(name, rows[name]))


class AgentView(ApiView):
    @documented("agents_read", ok={200: shapes.AgentSerializer}, errors=[404])
    def get(self, request: Any, type: str, key: str, namespace: str = "") -> Response:
        """One agent."""
        address = f"{namespace}/{type}/{key}" if namespace else f"{type}/{key}"
        specs.find(address)  # it is there, and enabled
        row = Agent.objects.filter(address=address).first()
        if not _may_see(request.user, row or Agent(address=address)):
            raise AgentNotFoundError(address)
        return Response(_shown(address, row))


def _may_see(user: Any, row: Agent) -> bool:
    return access.allows("may_see_agent", user, row)


def _shown(address: str, row: Agent | None) -> dict[str, Any]:
    """Of the spec only what is listed here goes out: an agent's own keys and instructions stay inside."""
    place = AgentId.parse(address)
    said = _said_by_code(address) if address in known_addresses() else _said_by_row(row)
    return {
        "agent": address,
        "type": place.type,
        "key": place.key,
        "namespace": place.namespace,
        "name": (row and row.name) or said["name"] or place.key,
        "description": (row and row.description) or said["description"],
        "class": said["class"],
        "model": said["model"],
        "tools": [_tool(tool) for tool in said["tools"]],
        "version": said.get("version"),
        "welcome": said.get("welcome", ""),
        "starter_prompts": said.get("starter_prompts", []),
        "variables": {  # a default is text of the instructions
            name: {"description": variable.get("description", ""), "required": variable.get("required", False)}
            for name, variable in said.get("variables", {}).items()
        },
        "result_schema": said.get("result_schema"),
    }


def _said_by_code(address: str) -> dict[str, Any]:
    agent = get_agent(address)
    spec = spec_of(agent)
    return {
        "class": spec["class"],
        "name": spec.get("name"),
        "description": str(spec.get("description") or getattr(agent, "description", "")),
        "model": spec.get("model"),
        "tools": spec.get("tools", []),
        "result_schema": spec.get("result_schema"),
        "welcome": spec.get("welcome", ""),
        "starter_prompts": spec.get("starter_prompts", []),
    }


def _said_by_row(row: Agent | None) -> dict[str, Any]:
    """Also of a spec that this process cannot build: a tool that it does not know is left out."""
    assert row is not None
    return {
        "class": CLASSES.get(row.spec.get("kind", REACT), ""),
        "name": row.name,
        "description": row.description,
        "version": row.version,
        "model": row.spec.get("model"),
        "result_schema": row.spec.get("result_schema"),
        "tools": [
            {**tool.spec.model_dump(), "risk": tool.risk, "effect": tool.promised_effect}
            for tool in specs.tools_of(row.spec)
        ],
        **{name: row.spec[name] for name in ("welcome", "starter_prompts", "variables") if name in row.spec},
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool.get(name) for name in ("name", "description", "parameters", "risk", "effect")}
