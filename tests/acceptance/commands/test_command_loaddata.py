"""Agents in the database, carried from one site to another by `dumpdata` and `loaddata`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError

from ravi_django.models import Agent, AgentVersion
from tests.support import world

pytestmark = pytest.mark.django_db

NATURAL = ("--natural-primary", "--natural-foreign")


def save(address: str, instructions: str, **fields: Any) -> Agent:
    return world.save_spec(address, {"model": "rehearsal", "system_instructions": instructions}, **fields)


def dumped(place: Path, *options: str) -> str:
    """All agents in the database, in a file; the database then has others, with the same keys."""
    file = str(place / "agents.json")
    call_command("dumpdata", "ravi.agent", "ravi.agentversion", *options, output=file)
    agents, versions = (list(model.objects.values_list("pk", flat=True)) for model in (Agent, AgentVersion))
    AgentVersion.objects.all().delete()
    Agent.objects.all().delete()
    for pk in agents:
        Agent.objects.create(pk=pk, address=f"react/other{pk}", source="admin")
    for pk in versions:
        AgentVersion.objects.create(pk=pk, agent_id=agents[0], number=pk, spec={"name": "other"})
    return file


def kept() -> list[Any]:
    return [
        *Agent.objects.filter(address__startswith="react/other").order_by("pk").values("pk", "address", "spec"),
        *AgentVersion.objects.filter(spec={"name": "other"}).order_by("pk").values("pk", "agent_id", "number"),
    ]


def test_agents_come_beside_those_that_are_there(tmp_path: Path) -> None:
    Agent.objects.all().delete()
    save("react/a", "First.")
    save("react/a", "Second.")
    save("react/b", "Third.")
    file = dumped(tmp_path, *NATURAL)
    before = kept()

    for _ in range(2):
        call_command("loaddata", file, verbosity=0)

    assert kept() == before
    assert len(before) == 5
    found = AgentVersion.objects.filter(agent__address__in=["react/a", "react/b"]).order_by("agent__address", "number")
    assert [(row.agent.address, row.number, row.spec["system_instructions"]) for row in found] == [
        ("react/a", 1, "First."),
        ("react/a", 2, "Second."),
        ("react/b", 1, "Third."),
    ]
    assert (world.specs_find("react/a").version, world.specs_find("react/a").spec["system_instructions"]) == (
        2,
        "Second.",
    )


def test_a_file_with_primary_keys_overwrites_no_other_agent(tmp_path: Path) -> None:
    Agent.objects.all().delete()
    save("react/a", "First.")
    file = dumped(tmp_path)
    before = kept()

    with pytest.raises(IntegrityError, match=r"react/other.*--natural-primary --natural-foreign"):
        call_command("loaddata", file, verbosity=0)

    assert kept() == before


def test_a_version_never_changes(tmp_path: Path) -> None:
    Agent.objects.all().delete()
    save("react/a", "Theirs.")
    file = dumped(tmp_path, *NATURAL)
    save("react/a", "Ours.")

    with pytest.raises(IntegrityError, match="react/a has another version 1"):
        call_command("loaddata", file, verbosity=0)

    assert AgentVersion.objects.get(agent__address="react/a").spec["system_instructions"] == "Ours."
