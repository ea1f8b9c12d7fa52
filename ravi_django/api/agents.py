"""The agents that the user may run."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ravi_django import access
from ravi_django.agents.spec.spec import CLASSES, REACT
from ravi_django.api.base import ApiViewSet
from ravi_django.api.filters import AddressPages
from ravi_django.api.openapi import COUNT, documented, parameter
from ravi_django.kernel import AgentId, AgentNotFoundError
from ravi_django.models import Agent
from ravi_django.runs.catalog import specs
from ravi_django.runs.catalog.registry import get_agent, known_addresses, spec_of
from ravi_django.services import shapes


class AgentViewSet(ApiViewSet):
    queryset = Agent.objects.all()
    serializer_class = shapes.AgentSerializer
    pagination_class = AddressPages

    @documented(
        "agents_list",
        ok={200: shapes.AgentSerializer(many=True)},
        errors=[400],
        parameters=[parameter("limit", "Agents a page: by default 50, at most 200.", kind=COUNT)],
    )
    def list(self, request: Any) -> Response:
        """The agents that the user may run, by address."""
        rows = access.agents_seen(request.user)
        return self.page(list(rows), lambda names: [_fields_of(name, rows[name]) for name in names])

    @documented("agents_read", ok={200: shapes.AgentSerializer}, errors=[404])
    def retrieve(self, request: Any, type: str, key: str, namespace: str = "") -> Response:
        """One agent."""
        address = f"{namespace}/{type}/{key}" if namespace else f"{type}/{key}"
        try:
            specs.find(address)
        except AgentNotFoundError as error:
            raise access.not_found(request.user, address, error) from None
        row = Agent.objects.filter(address=address).first()
        if not access.allows("may_see_agent", request.user, row or Agent(address=address)):
            raise access.not_found(request.user, address)
        return self.response_of(_fields_of(address, row))


_ABSENT: dict[str, Any] = {"model": None, "tools": [], "result_schema": None, "welcome": "", "starter_prompts": []}


def _fields_of(address: str, row: Agent | None) -> dict[str, Any]:
    """The serializer shows a part of this: other keys of a spec and the instructions are not shown."""
    agent_id, spec = AgentId.parse(address), _of_code(address) if address in known_addresses() else _of_row(row)
    return {
        **_ABSENT,
        **spec,
        "agent": address,
        "type": agent_id.type,
        "key": agent_id.key,
        "namespace": agent_id.namespace,
        "name": (row and row.name) or spec.get("name") or agent_id.key,
        "description": (row and row.description) or spec["description"],
    }


def _of_code(address: str) -> dict[str, Any]:
    agent = get_agent(address)
    spec = spec_of(agent)
    description = str(spec.get("description") or getattr(agent, "description", ""))
    return {**spec, "description": description, "version": None, "variables": {}}


def _of_row(row: Agent | None) -> dict[str, Any]:
    """Also for a spec that this process cannot build: unknown tools are left out."""
    assert row is not None
    tools = specs.tools_of(row.spec)
    return {
        "variables": {},
        **row.spec,
        "name": row.name,
        "class": CLASSES.get(row.spec.get("kind", REACT), ""),
        "version": row.version,
        "tools": [{**tool.spec.model_dump(), "risk": tool.risk, "effect": tool.promised_effect} for tool in tools],
        "description": row.description,
    }
