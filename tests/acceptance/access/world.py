"""One row of each kind, made by one owner, and the people who try to reach it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.utils import timezone

import ravi_django
from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.models import (
    Agent,
    AgentVersion,
    AuditRecord,
    BoardTask,
    BudgetAccount,
    DailyBudget,
    Delegation,
    Feedback,
    JournalEntry,
    ModelLimit,
    Publication,
    RaviFile,
    Run,
    Schedule,
    Source,
    SourceItem,
    StickyDecision,
    WorkerProcess,
)
from ravi_django.testing import ScriptedModel
from tests.support.asked import approval_of
from tests.support.world import submit_once

PEOPLE = ("anonymous", "other", "foreign", "staff", "clerk", "owner", "root")
AGENT = "react/matrix"
CONTENT = f"ravi/of-the-matrix-{os.environ.get('PYTEST_XDIST_WORKER', '')}"  # in the storage, which all processes share


def tenant_of(user: Any) -> str:
    """RAVI["TENANT_OF"] of the test: `foreign` belongs to another tenant."""
    return "b" if user.get_username() == "foreign" else "a"


@dataclass(frozen=True)
class World:
    """`rows` has one row a model, by the model's name in lower case."""

    people: dict[str, Any]
    run: Run
    rows: dict[str, Any]
    marker: str = "of-tenant-a"  # in the texts of all rows


def make() -> World:
    """Everything belongs to `owner`, in tenant a. `clerk` holds every permission of the app, `foreign` too, as staff of
    tenant b; `viewer` those to view, `staff` none."""
    register(ReActAgent("matrix", model=ScriptedModel("ok")))
    users = get_user_model().objects
    people = {
        "anonymous": None,
        "other": users.create_user("other"),
        "foreign": users.create_user("foreign", is_staff=True),
        "staff": users.create_user("staff", is_staff=True),
        "clerk": users.create_user("clerk", is_staff=True),
        "owner": users.create_user("owner"),
        "root": users.create_superuser("root"),
        "viewer": users.create_user("viewer", is_staff=True),
    }
    ours = Permission.objects.filter(content_type__app_label="ravi")
    for name in ("foreign", "clerk"):
        people[name].user_permissions.set(ours)
    people["viewer"].user_permissions.set(ours.filter(codename__startswith="view_"))
    owner = people["owner"]
    run = submit_once(AGENT, f"hi {World.marker}", user=owner, tenant="a", send=lambda run_id: None)[0]
    request = approval_of(run, text=World.marker)
    follow, _ = ravi_django.follow(AGENT, f"news/{World.marker}", user=owner, tenant="a")
    mine = {"owner": owner, "tenant": "a"}
    now = timezone.now()
    source = Source.objects.create(name=World.marker, kind=Source.Kind.WEBHOOK, agent=AGENT, **mine)
    text = {"text": World.marker}
    agent = Agent.objects.create(address="react/row", source="admin", spec={"class": "ReActAgent"})
    AgentVersion.objects.create(agent=agent, number=1, spec=agent.spec)
    entry = {"path": "@x", "kind": "log", "name": World.marker, "started_at": now, "finished_at": now}
    record = {"run_id": run.id, "session_id": run.session_id, "name": World.marker}
    storages["default"].exists(CONTENT) or storages["default"].save(CONTENT, ContentFile(b"hi"))
    published = {"topic": f"news/{World.marker}", "message_id": "1", "scope": "5c", "digest": "d0", "body": text}
    made = [
        *(run, run.session, request, follow, source, agent),
        AuditRecord.objects.create(key="0a", event="run", agent=AGENT, **record, **mine),
        BoardTask.objects.create(session=run.session, agent=AGENT, number=1, title=World.marker),
        BudgetAccount.objects.create(key=f"tree:{run.tree_id}"),
        DailyBudget.objects.create(owner=owner, max_turns=5),
        ModelLimit.objects.create(key="k", name="openai/*", tenant="a"),
        Delegation.objects.create(user=people["staff"], delegate=people["clerk"]),
        Feedback.objects.create(run=run, user=people["clerk"], score=-1, text=World.marker),
        JournalEntry.objects.create(run=run, seq=run.next_seq, **entry),
        Publication.objects.create(**published, **mine),
        RaviFile.objects.create(name=World.marker, type="text/plain", size=2, sha256="s", content=CONTENT, **mine),
        Schedule.objects.create(name=World.marker, agent=AGENT, input="hi", every_s=60, starts_at=now, **mine),
        SourceItem.objects.create(source=source, identity="i", digest="d", title=World.marker),
        StickyDecision.objects.create(session=run.session, agent=AGENT, tool=World.marker, risk="high", action="deny"),
        WorkerProcess.objects.create(name="w", started_at=now, seen_at=now),
    ]
    run.next_seq += 1
    run.save(update_fields=["next_seq"])
    return World(people, run, {row._meta.model_name: row for row in made})


def misfits(path: Path, seen: dict[str, list[str]], people: tuple[str, ...] = PEOPLE) -> str:
    """The lines that differ from the table in this file, each as it was seen; empty where the table fits.

    Its lines are `row: outcomes`, one outcome a person, in the order of `people`."""
    table = path.read_text().splitlines()
    assert table[0] == f"# {' '.join(people)}"
    lines = [f"{row}: {' '.join(outcomes)}" for row, outcomes in seen.items()]
    wrong = [line for line in lines if line not in table]
    gone = [f"gone: {line}" for line in table[1:] if line.partition(":")[0] not in seen]
    return "\n".join(wrong + gone)
