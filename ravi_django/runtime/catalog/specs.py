"""Agents that are rows. A row has a spec; each change of it is a new version; a run is driven by the version that it
was made with, whatever becomes of the row."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from django.db.models import Max
from django.utils import timezone
from pydantic_core import from_json

from ravi_django.agents.memory.history import HistoryProvider
from ravi_django.agents.spec.factory import rebuild_agent
from ravi_django.agents.spec.spec import REACT, AgentSpec, validate_spec
from ravi_django.agents.tools.approvers import Approvers
from ravi_django.agents.tools.delegate import AgentTool
from ravi_django.db import transaction
from ravi_django.kernel import Agent as AgentObject
from ravi_django.kernel import AgentId, AgentNotFoundError, ChatModel, InvalidInputError, NotFoundError, Risk, Tool
from ravi_django.models import Agent, AgentVersion, Blob, JournalEntry, Run
from ravi_django.runtime.catalog import registry
from ravi_django.runtime.catalog.prompts import check_variables, instructions_of
from ravi_django.runtime.journal import bodies
from ravi_django.runtime.journal.entries import blob_value

MOST = 1000  # agents that are kept built


@dataclass(frozen=True, slots=True)
class Found:
    """An agent that may be run now."""

    address: AgentId
    version: int | None = None  # of its spec; None: it is code
    spec: dict[str, Any] = field(default_factory=dict)  # of a row
    access: registry.Access = "private"  # the users who may run it

    def check_variables(self, metadata: Mapping[str, Any]) -> None:
        """Raises InvalidInputError where a run's `metadata["variables"]` are not what the spec declares."""
        if self.version is not None:
            check_variables(self.spec.get("variables") or {}, metadata)


# ------------------------------------------------------------------------------------------------------- finding


def find(address: AgentId | str) -> Found:
    """The agent that a new run of this address is made with: the registered one, else the row's newest version. One
    query. Raises AgentNotFoundError when there is none, or it was switched off."""
    try:
        place = address if isinstance(address, AgentId) else AgentId.parse(address)
    except InvalidInputError:
        raise AgentNotFoundError(address) from None
    if str(place) in registry._agents:
        if is_disabled(str(place)):
            raise AgentNotFoundError(place)
        return Found(place, access=registry.access_of(place))
    row = _rows().filter(address=str(place)).values_list("version", "spec", "access").first()
    if row is None:
        raise AgentNotFoundError(place)
    return Found(place, *row)


def _rows() -> Any:
    return Agent.objects.filter(source=Agent.Source.ADMIN, enabled=True)


def agent_of(run: Run) -> AgentObject:
    """What drives a run. Raises AgentNotFoundError or InvalidInputError where another process may be able to, a plain
    NotFoundError where none is. A row costs a query; see `load`."""
    if run.agent_version is None:
        return registry.get_agent(run.agent)
    return load(run.agent, run.agent_version)


def uses_litellm() -> bool:
    """Whether an agent that this process can drive calls models through litellm: then it is worth importing early."""
    from ravi_django.capabilities.llm import LiteLLMModel
    from ravi_django.capabilities.rehearsal.model import REHEARSAL

    models = [getattr(agent, "model", None) for agent in list(registry._agents.values())]
    return any(isinstance(model, LiteLLMModel) for model in models) or (
        _rows().filter(spec__has_key="model").exclude(spec__model=REHEARSAL).exists()
    )


def models() -> Iterator[tuple[str, ChatModel]]:
    """Of every agent that can be run: its address and its model, if it has one."""
    for address, agent in list(registry._agents.items()):
        if (model := getattr(agent, "model", None)) is not None:
            yield address, model
    for address, spec in _rows().exclude(address__in=list(registry._agents)).values_list("address", "spec"):
        if name := spec.get("model"):
            yield address, build_model(name, fallbacks=spec.get("fallbacks") or ())


# ------------------------------------------------------------------------------------------------------- building

# With the row's spec and the tools then.
_built: OrderedDict[tuple[str, int], tuple[Any, Any, AgentObject]] = OrderedDict()
_lock = threading.Lock()


def load(address: AgentId | str, version: int) -> AgentObject:
    """The agent of this version of the row's spec; built once, and again when tools were registered since. One query:
    a row that was deleted and made anew is another one.

    Raises NotFoundError when the version is gone, InvalidInputError, naming the field, when this process cannot build
    it: a tool that it does not have.
    """
    place = str(address), version
    versions = AgentVersion.objects.filter(agent__address=place[0], number=version)
    row = versions.values_list("id", "spec").first()
    if row is None:  # a row that came by a fixture has no versions beside it
        made = Agent.objects.filter(address=place[0], version=version, source=Agent.Source.ADMIN, versions=None)
        row = made.values_list("id", "spec").first()
    if row is None:
        raise NotFoundError(
            f"version {version} of agent {address}, which made this run, is gone; put it back, or cancel the run"
        )
    tools = registry.known_tools()
    with _lock:
        known = _built.get(place)
        if known is not None and known[0] == row and known[1] is tools:
            _built.move_to_end(place)
            return known[2]
    try:
        agent = build(place[0], row[1])
    except InvalidInputError as error:
        raise InvalidInputError(f"agent {address}, version {version}: {error}", field=error.field) from error
    with _lock:
        _built[place] = (row, tools, agent)
        while len(_built) > MOST:
            _built.popitem(last=False)
    return agent


def build(address: str, spec: Mapping[str, Any] | AgentSpec) -> AgentObject:
    """The agent object of a spec: its tools from `known_tools`, its conversations in the database. Raises
    InvalidInputError, naming the field."""
    from ravi_django.runtime.lease.history import DjangoHistoryProvider

    checked = validate_spec(spec)
    try:
        return rebuild_agent(
            checked,
            id=address,
            tools=registry.known_tools(),
            build_model=build_model,
            memory=cast(HistoryProvider, DjangoHistoryProvider()),
            system_instructions=instructions_of(address, checked),
            **_approvals_of(checked),
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"the spec makes no agent: {error}", field="spec") from error


def _approvals_of(spec: AgentSpec) -> dict[str, Any]:
    """A row only tightens what its tools and the site say: it asks about calls of high risk at least."""
    if spec.kind != REACT:
        return {}
    required = Risk.SAFE if spec.approval_required_risk is Risk.SAFE else Risk.HIGH
    return {"approval_required_risk": required, "approvers": Approvers.of(spec.approvers).as_of_row()}


def tools_of(spec: Mapping[str, Any]) -> list[Tool]:
    """The tools of a row's spec that this process knows, those that hand over to its sub-agents included; none of a
    spec that this release cannot read."""
    known = registry.known_tools()
    try:
        checked = validate_spec(spec)
    except InvalidInputError:
        return []
    named = [known.get(name) for name in checked.tool_names]
    return [
        *(tool for tool in named if tool is not None),
        *(AgentTool(one.agent, one.description, one.timeout) for one in checked.sub_agents),
    ]


def build_model(name: str, **options: Any) -> ChatModel:
    """The client of a spec's model; keys come from the environment or the settings, never from the spec."""
    from ravi_django.capabilities.llm import LLMFactory

    return LLMFactory(name, **options).build()


# --------------------------------------------------------------------------------------------------------- saving


def save_spec(
    address: AgentId | str,
    spec: Mapping[str, Any] | AgentSpec,
    *,
    by: Any = None,
    name: str | None = None,
    description: str | None = None,
    enabled: bool | None = None,
    access: str | None = None,
) -> Agent:
    """Keep a spec as the agent of this address: the next version of it, unless nothing has changed. Its new runs use
    it at once, in every process; those that there are keep theirs.

    `name` and `description` are said over the spec's own. `by` is the user who made the version, and who owns a new
    row. `access` names the users who may run it, as `register` does, but for a function; a new row is private. One
    transaction; two who save at once get a version each. Raises InvalidInputError whose `field` is the place in the
    spec, "address" or "access".
    """
    place = AgentId.parse(str(address))
    if str(place) in registry._agents:
        raise InvalidInputError(
            f"{place} is registered by code, which would be run in its place; choose another address", field="address"
        )
    said = {"name": name, "description": description}
    checked = check_spec(spec, **{key: value for key, value in said.items() if value is not None})
    with transaction.atomic():
        columns: dict[str, Any] = {
            "source": Agent.Source.ADMIN,
            "name": checked.name,
            "description": checked.description,
        }
        if access is not None:
            columns["access"] = registry.check_access(access)
        maker = by if by is not None and by.is_authenticated else None
        row, new = Agent.objects.select_for_update().get_or_create(
            address=str(place), defaults={**columns, "spec": checked.to_json(), "owner": maker}
        )
        changed = new or row.source != Agent.Source.ADMIN or row.spec != checked.to_json()
        if enabled is not None:
            columns["enabled"] = enabled
        if changed:
            columns |= {"spec": checked.to_json(), "version": _next_number(row)}
            AgentVersion.objects.create(agent=row, number=columns["version"], spec=checked.to_json(), created_by=maker)
        Agent.objects.filter(id=row.id).update(**columns, updated_at=timezone.now())
        row.refresh_from_db()
    return row


def check_spec(spec: Mapping[str, Any] | AgentSpec, **said: str) -> AgentSpec:
    """The spec as it would be saved; `said` replaces fields of it. Raises InvalidInputError, as `save_spec` does."""
    given = spec.to_json() if isinstance(spec, AgentSpec) else spec
    checked = validate_spec({**given, **said} if isinstance(given, Mapping) else given, registry.known_tools().names())
    if checked.sub_agents:
        validate_spec(checked, known_agents=known_agents())
        _check_inherited(checked)
    build("check/spec", checked)
    return checked


def _check_inherited(spec: AgentSpec) -> None:
    """A sub-agent is given the variables of who hands over to it, and no others."""
    addresses = [sub_agent.agent for sub_agent in spec.sub_agents]
    specs = dict(_rows().filter(address__in=addresses).values_list("address", "spec"))
    for place, address in enumerate(addresses):
        if address in registry._agents:
            continue
        for name, variable in (specs.get(address, {}).get("variables") or {}).items():
            own = spec.variables.get(name)
            if not variable.get("required") or variable.get("default") is not None:
                continue
            if own is None or not (own.required or own.default is not None):
                raise InvalidInputError(
                    f"sub_agents.{place}: {address} requires the variable {name!r}, which it gets from this agent; "
                    f"declare {name!r} here too, required or with a default",
                    field=f"sub_agents.{place}",
                )


def known_agents() -> set[str]:
    """The addresses that a run can be made for here: registered agents, and rows that are not switched off."""
    found: Iterable[str] = _rows().values_list("address", flat=True)
    return {*found, *registry.known_addresses()}


def _next_number(row: Agent) -> int:
    """Never one that was given before under this address: runs and workers know versions by it."""
    last = row.versions.aggregate(last=Max("number"))["last"]
    if last is None:  # a new row, maybe in place of one that was deleted
        last = Run.objects.filter(agent=row.address).aggregate(last=Max("agent_version"))["last"]
    return int(last or 0) + 1


_schemas: OrderedDict[str, dict[str, Any] | None] = OrderedDict()  # of results, by the digest of a spec
_MOST_SCHEMAS = 1000


def result_schema_of(run: Run) -> dict[str, Any] | None:
    """The JSON schema of a run's output, by the spec that its first lease has pinned; None when it is no typed one, or
    when nothing is pinned yet, or any more."""
    if run.started_at is None or not _may_be_typed(run):
        return None
    started = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, path="@started")
    pinned: Any = started.values_list("result", flat=True).first()
    digest = (pinned or {}).get("spec")
    if digest is None:
        return None
    if digest in _schemas:
        return _schemas.get(digest)
    blob = Blob.objects.filter(id=digest).first()
    if blob is None:
        return None
    schema: dict[str, Any] | None = blob_value(blob).get("result_schema")
    _schemas[digest] = schema
    while len(_schemas) > _MOST_SCHEMAS:
        _schemas.popitem(last=False)
    return schema


def _may_be_typed(run: Run) -> bool:
    """Whether it is worth a query: a typed run's output is JSON, as text or as the value that was replied."""
    if run.output is None:  # not ended, or not well
        agent = registry._agents.get(run.agent) if run.agent_version is None else None
        return agent is None or getattr(agent, "result", None) is not None
    if not isinstance(run.output, str):
        return True
    try:
        from_json(run.output)
    except ValueError:
        return False
    return True


def is_disabled(agent: str) -> bool:
    """An operator has switched this agent off."""
    return Agent.objects.filter(address=agent, enabled=False).exists()


def forget() -> None:
    """The database is another, or empty again (tests)."""
    _schemas.clear()
    bodies.forget()
