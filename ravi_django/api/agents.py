"""Agents: what one may run in this process."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ravi_django.api import serializers
from ravi_django.api.base import ApiView
from ravi_django.api.openapi import documented, parameter
from ravi_django.api.pagination import AddressPages
from ravi_django.kernel import AgentId, AgentNotFoundError
from ravi_django.models import Agent
from ravi_django.runtime.registry import get_agent, known_addresses, spec_of


class AgentsView(ApiView):
    @documented(
        "agents_list",
        ok={200: serializers.AgentPageSerializer},
        errors=[400],
        parameters=[parameter("limit", "Agents a page, 50 when absent, at most 200.", kind=int)],
    )
    def get(self, request: Any) -> Response:
        """What the user may run, by address."""
        rows = {row.address: row for row in Agent.objects.all()}
        open_to_all = [name for name in sorted(known_addresses()) if name not in rows or rows[name].enabled]
        pages = AddressPages(request, [(name, name) for name in open_to_all])
        return pages.response(lambda name: _shown(name, rows.get(name)))


class AgentView(ApiView):
    @documented("agents_read", ok={200: serializers.AgentSerializer}, errors=[404])
    def get(self, request: Any, type: str, key: str, namespace: str = "") -> Response:
        """One agent."""
        address = f"{namespace}/{type}/{key}" if namespace else f"{type}/{key}"
        require_runnable(address)
        return Response(_shown(address, Agent.objects.filter(address=address).first()))


def require_runnable(address: AgentId | str) -> None:
    """Raises AgentNotFoundError for an agent that is not registered, or was disabled in the admin."""
    get_agent(address)
    if Agent.objects.filter(address=str(address), enabled=False).exists():
        raise AgentNotFoundError(address)


def _shown(address: str, row: Agent | None) -> dict[str, Any]:
    """Of the spec only what is listed here goes out: an agent's own keys and instructions stay inside."""
    agent = get_agent(address)
    spec = spec_of(agent)
    place = AgentId.parse(address)
    return {
        "agent": address,
        "type": place.type,
        "key": place.key,
        "namespace": place.namespace,
        "name": (row and row.name) or spec.get("name") or place.key,
        "description": (row and row.description) or str(spec.get("description") or getattr(agent, "description", "")),
        "class": spec["class"],
        "model": spec.get("model"),
        "tools": [_tool(tool) for tool in spec.get("tools", [])],
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool.get(name) for name in ("name", "description", "parameters", "risk", "effect")}
