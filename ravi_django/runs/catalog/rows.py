"""The catalogue of agents: a row for each agent in the code, updated by `migrate`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from django.apps import apps as global_apps
from django.db import DEFAULT_DB_ALIAS, IntegrityError, router
from django.db.models import Q
from pydantic_core import to_json

from ravi_django.models import Agent
from ravi_django.runs.catalog.registry import access_of, get_agent, known_addresses, spec_of

log = logging.getLogger("ravi.catalog")


def sync_agents(using: str = DEFAULT_DB_ALIAS, model: type[Agent] = Agent) -> list[str]:
    """Write the descriptions of the registered agents; returns the addresses that were new or changed.

    The operator decides whether an agent is enabled. A row whose code is gone stays for its runs. If it has versions,
    edited before the code took its address, it becomes an agent of the admin again, with the newest of them.
    """
    rows = model._default_manager.using(using)
    known = {row.address: row for row in rows.all()}
    changed = []
    for address in known_addresses():
        fields = _fields(address)
        if hasattr(model, "access"):  # for processes without this code
            access = access_of(address)
            fields["access"] = access if isinstance(access, str) else "private"
        row = known.get(address)
        if row is None:
            rows.update_or_create(address=address, defaults=fields)
        elif any(getattr(row, name) != value for name, value in fields.items()):
            for name, value in fields.items():
                setattr(row, name, value)
            row.save(using=using, update_fields=[*fields, "updated_at"])
        else:
            continue
        changed.append(address)
    return changed + _give_back(rows, known.values())


def _give_back(rows: Any, known: Iterable[Agent]) -> list[str]:
    registered = set(known_addresses())
    gone = [row for row in known if row.source == Agent.Source.CODE and row.address not in registered]
    if not gone or not hasattr(rows.model, "versions"):  # before there were versions
        return []
    changed = []
    for row in rows.filter(pk__in=[row.pk for row in gone], versions__isnull=False).distinct():
        newest = row.versions.using(rows.db).order_by("-number").first()
        row.source, row.spec, row.version = Agent.Source.ADMIN.value, newest.spec, newest.number
        row.name, row.description = newest.spec.get("name", ""), newest.spec.get("description", "")
        row.save(using=rows.db, update_fields=["source", "spec", "version", "name", "description", "updated_at"])
        changed.append(row.address)
    return changed


def sync_after_migrate(using: str, apps: Any = global_apps, **kwargs: Any) -> None:
    """On `post_migrate`: with the models at that point of the history, which may lack Agent."""
    try:
        model = apps.get_model("ravi", "Agent")
    except LookupError:
        return
    if router.allow_migrate_model(using, model):
        sync_agents(using, model)


NATURAL = "Dump with --natural-primary --natural-foreign"


def check_fixture(sender: Any, instance: Any, raw: bool, using: str, **kwargs: Any) -> None:
    """On `pre_save`: refuse a fixture that would overwrite another agent or version. Raises IntegrityError."""
    if not raw:
        return
    rows = sender._default_manager.using(using)
    if isinstance(instance, Agent):
        other = rows.filter(pk=instance.pk, source=Agent.Source.ADMIN).exclude(address=instance.address).first()
        if other is not None:
            raise IntegrityError(f"key {instance.pk} is the agent {other} here. {NATURAL}")
        return
    version_key = {"agent_id": instance.agent_id, "number": instance.number}
    for row in rows.select_related("agent").filter(Q(pk=instance.pk) | Q(**version_key)):
        if (row.agent_id, row.number, row.spec) != (*version_key.values(), instance.spec):
            raise IntegrityError(f"{row.agent} has another version {row.number} here, or another key for it. {NATURAL}")


def _fields(address: str) -> dict[str, Any]:
    agent = get_agent(address)
    try:
        spec = json.loads(to_json(spec_of(agent), fallback=str))
    except Exception as error:  # a faulty description must not stop a migration
        log.warning("agent %s cannot describe itself: %s", address, error, extra={"action": "catalog.failed"})
        spec = {"class": type(agent).__name__}
    return {
        "source": Agent.Source.CODE.value,
        "name": str(spec.get("name") or getattr(agent, "name", "") or "")[:200],
        "description": str(spec.get("description") or getattr(agent, "description", "") or ""),
        "spec": spec,
    }
