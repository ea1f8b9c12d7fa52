"""Agents stored in the database. Every edit of a spec makes a new version; a run keeps the version that it was created
with."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

from django.db.models import Max
from django.utils import timezone
from pydantic_core import from_json

from ravi_django.agents.memory.history import HistoryProvider
from ravi_django.agents.react.result import ResultType
from ravi_django.agents.spec.factory import rebuild_agent
from ravi_django.agents.spec.spec import REACT, AgentSpec, validate_spec
from ravi_django.agents.tools.approvers import Approvers
from ravi_django.agents.tools.delegate import AgentTool
from ravi_django.db import transaction
from ravi_django.engine.journal import bodies
from ravi_django.engine.journal.entries import blob_value
from ravi_django.kernel import (
    Agent as AgentObject,
    AgentId,
    AgentNotFoundError,
    ChatModel,
    IllegalTransitionError,
    InvalidInputError,
    NotFoundError,
    Risk,
    Tool,
)
from ravi_django.models import Agent, AgentVersion, Blob, JournalEntry, Run
from ravi_django.runs.catalog import registry, row_models
from ravi_django.runs.catalog.prompts import check_variables, instructions_of

MOST = 1000  # built agents, and schemas, in memory


@dataclass(frozen=True, slots=True)
class RunnableAgent:
    """An agent that may be run now."""

    address: AgentId
    version: int | None = None  # of its spec; None: it is code
    spec: dict[str, Any] = field(default_factory=dict)  # of a row
    access: registry.Access = "private"  # the users who may run it

    @property
    def in_code(self) -> Any:
        """The registered object; None for a row."""
        return registry._agents.get(str(self.address)) if self.version is None else None

    @property
    def client_tools(self) -> Any:
        """Whether its runs take the tools of their client."""
        return (
            self.spec.get("client_tools") if self.version is not None else getattr(self.in_code, "client_tools", False)
        )

    def check_variables(self, metadata: Mapping[str, Any]) -> None:
        """Raises InvalidInputError unless a run's `metadata["variables"]` fit the spec's declarations."""
        if self.version is not None:
            check_variables(self.spec.get("variables") or {}, metadata)


# ------------------------------------------------------------------------------------------------------- finding


def find(address: AgentId | str) -> RunnableAgent:
    """The agent for a new run of this address: the registered one, else the newest version of the row. One query.
    Raises AgentNotFoundError when there is none, or it is disabled: its notes, which tracebacks show, name the agents
    that there are. Its text does not: owners of runs read it."""
    try:
        agent_id = address if isinstance(address, AgentId) else AgentId.parse(address)
    except InvalidInputError:
        raise _missing(address) from None
    if str(agent_id) in registry._agents:
        if is_disabled(str(agent_id)):
            raise AgentNotFoundError(agent_id, is_disabled=True)
        return RunnableAgent(agent_id, access=registry.access_of(agent_id))
    row = _rows().filter(address=str(agent_id)).values_list("version", "spec", "access").first()
    if row is None:
        raise AgentNotFoundError(agent_id, is_disabled=True) if is_disabled(str(agent_id)) else _missing(agent_id)
    return RunnableAgent(agent_id, *row)


def find_or_list(address: AgentId | str) -> RunnableAgent:
    """`find` for the site's own code: the error's text names the agents that there are."""
    try:
        return find(address)
    except AgentNotFoundError as error:
        if error.is_disabled:
            raise
        raise AgentNotFoundError(address, registry.hint_for(address, known_agents())) from None


def _missing(address: AgentId | str) -> AgentNotFoundError:
    error = AgentNotFoundError(address)
    if hint := registry.hint_for(address, known_agents()):
        error.add_note(hint.strip(". "))
    return error


def in_code(address: AgentId) -> RunnableAgent | None:
    """The registered agent of this address, which may be disabled; None without one."""
    return RunnableAgent(address, access=registry.access_of(address)) if str(address) in registry._agents else None


def _rows() -> Any:
    return Agent.objects.filter(source=Agent.Source.ADMIN, enabled=True)


def check_not_withdrawn(run: Run) -> None:
    """Raises IllegalTransitionError for a run of a version that an operator has withdrawn."""
    withdrawn = Agent.objects.filter(address=run.agent, oldest_version__gt=run.agent_version or 0)
    if run.agent_version is not None and withdrawn.exists():
        raise IllegalTransitionError(
            f"version {run.agent_version} of agent {run.agent}, which made run {run.id}, was withdrawn; "
            "submit its input again, or fork it with a new input"
        )


def agent_of(run: Run) -> AgentObject:
    """The agent object of a run. Raises AgentNotFoundError or InvalidInputError if another process may have it, a plain
    NotFoundError if none can. A row costs a query; see `load`."""
    if run.agent_version is None:
        return registry.get_agent(run.agent)
    return load(run.agent, run.agent_version)


# ------------------------------------------------------------------------------------------------------- building

# With the row's spec and the tools of that time.
_built: OrderedDict[tuple[str, int], tuple[Any, Any, AgentObject]] = OrderedDict()
_lock = threading.Lock()


def load(address: AgentId | str, version: int) -> AgentObject:
    """The agent of this version of the row's spec; built once, and again after tools were registered. One query: a row
    that was deleted and created again is another one.

    Raises NotFoundError when the version is gone, InvalidInputError, naming the field, when this process cannot build
    it: it lacks a tool.
    """
    key = str(address), version
    versions = AgentVersion.objects.filter(agent__address=key[0], number=version)
    row = versions.values_list("id", "spec").first()
    if row is None:  # a row from a fixture has no versions
        made = Agent.objects.filter(address=key[0], version=version, source=Agent.Source.ADMIN, versions=None)
        row = made.values_list("id", "spec").first()
    if row is None:
        raise NotFoundError(
            f"version {version} of agent {address}, which made this run, is gone; put it back, or cancel the run"
        )
    tools = registry.known_tools()
    with _lock:
        known = _built.get(key)
        if known is not None and known[0] == row and known[1] is tools:
            _built.move_to_end(key)
            return known[2]
    try:
        agent = build(key[0], row[1])
    except InvalidInputError as error:
        raise InvalidInputError(f"agent {address}, version {version}: {error}", field=error.field) from error
    with _lock:
        _built[key] = (row, tools, agent)
        while len(_built) > MOST:
            _built.popitem(last=False)
    return agent


def build(address: str, spec: Mapping[str, Any] | AgentSpec) -> AgentObject:
    """The agent object of a spec: its tools from `known_tools`, its conversations in the database. Raises
    InvalidInputError, naming the field."""
    from ravi_django.engine.lease.history import DjangoHistoryProvider

    checked = validate_spec(spec)
    row_models.check([checked.model, *checked.fallbacks])
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
    """A row can only tighten the approvals of its tools and the site: it asks about calls of high risk at least."""
    if spec.kind != REACT:
        return {}
    required = Risk.SAFE if spec.approval_required_risk is Risk.SAFE else Risk.HIGH
    return {"approval_required_risk": required, "approvers": Approvers.of(spec.approvers).as_of_row()}


def tools_of(spec: Mapping[str, Any]) -> list[Tool]:
    """The tools of a row's spec that this process knows, with those that hand over to its sub-agents; none for a spec
    that this release cannot read."""
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
    from ravi_django.calls.llm import LLMFactory

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
    oldest_version: int | None = None,
) -> Agent:
    """Store a spec as the agent of this address: as its next version, unless nothing has changed. New runs use it at
    once, in every process; existing runs keep theirs.

    `name` and `description` replace the spec's own. `by` is the user who made the version, and who owns a new row.
    `access` is as in `register`, without functions; a new row is private. Runs of versions before `oldest_version` are
    neither retried nor forked. One transaction; two concurrent saves make
    two versions. Raises InvalidInputError whose `field` is the place in the spec, "address" or "access".
    """
    agent = AgentId.parse(str(address))
    if str(agent) in registry._agents:
        raise InvalidInputError(
            f"{agent} is registered by code, which would be run in its place; choose another address", field="address"
        )
    texts = {"name": name, "description": description}
    checked = check_spec(spec, **{key: value for key, value in texts.items() if value is not None})
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
            address=str(agent), defaults={**columns, "spec": checked.to_json(), "owner": maker}
        )
        changed = new or row.source != Agent.Source.ADMIN or row.spec != checked.to_json()
        if enabled is not None:
            columns["enabled"] = enabled
        if oldest_version is not None:
            columns["oldest_version"] = oldest_version
        if changed:
            columns |= {"spec": checked.to_json(), "version": _next_number(row)}
            AgentVersion.objects.create(agent=row, number=columns["version"], spec=checked.to_json(), created_by=maker)
        Agent.objects.filter(id=row.id).update(**columns, updated_at=timezone.now())
        row.refresh_from_db()
    return row


def check_spec(spec: Mapping[str, Any] | AgentSpec, **changes: str) -> AgentSpec:
    """The spec as it would be saved; `changes` replaces fields of it. Raises InvalidInputError, as `save_spec` does."""
    body = spec.to_json() if isinstance(spec, AgentSpec) else spec
    checked = validate_spec({**body, **changes} if isinstance(body, Mapping) else body, registry.known_tools().names())
    if checked.sub_agents:
        validate_spec(checked, known_agents=known_agents())
        _check_inherited(checked)
    build("check/spec", checked)
    return checked


def _check_inherited(spec: AgentSpec) -> None:
    """A sub-agent gets the variables of the agent that hands over to it, and no others."""
    addresses = [sub_agent.agent for sub_agent in spec.sub_agents]
    specs = dict(_rows().filter(address__in=addresses).values_list("address", "spec"))
    for index, address in enumerate(addresses):
        if address in registry._agents:
            continue
        for name, variable in (specs.get(address, {}).get("variables") or {}).items():
            declared = spec.variables.get(name)
            if not variable.get("required") or variable.get("default") is not None:
                continue
            if declared is None or not (declared.required or declared.default is not None):
                raise InvalidInputError(
                    f"sub_agents.{index}: {address} requires the variable {name!r}, which it gets from this agent; "
                    f"declare {name!r} here too, required or with a default",
                    field=f"sub_agents.{index}",
                )


def known_agents() -> set[str]:
    """The addresses of agents that can be run here: registered ones, and enabled rows."""
    in_rows: Iterable[str] = _rows().values_list("address", flat=True)
    return {*in_rows, *registry.known_addresses()}


def _next_number(row: Agent) -> int:
    """Never a number that was used before under this address: runs and workers identify versions by it."""
    last = row.versions.aggregate(last=Max("number"))["last"]
    if last is None:  # a new row, maybe after a deleted one
        last = Run.objects.filter(agent=row.address).aggregate(last=Max("agent_version"))["last"]
    return int(last or 0) + 1


def result_schema_of(run: Run) -> dict[str, Any] | None:
    """The JSON schema of a run's output: of its request, else from the spec that its first lease has pinned; None for
    an untyped output, and without a pinned spec."""
    if run.result_schema:
        return dict(from_json(run.result_schema))
    if run.started_at is None or not _may_be_typed(run):
        return None
    started = JournalEntry.objects.filter(run_id=run.id, generation=run.generation, path="@started")
    pinned: Any = started.values_list("result", flat=True).first()
    digest = (pinned or {}).get("spec")
    try:
        return None if digest is None else _schema(digest)
    except Blob.DoesNotExist:
        return None


_asked: dict[UUID, ResultType] = {}  # by run: what requests of this process have asked for


def remember_type(run_id: UUID, asked: ResultType | None) -> None:
    if asked is not None:
        _asked[run_id] = asked
    while len(_asked) > MOST:
        del _asked[next(iter(_asked))]


def result_type_of(run: Run) -> ResultType | None:
    """The type of a run's output: that of its request, else its agent's; where this process does not know the type, its
    schema. None for an untyped output."""
    if (asked := _asked.get(run.id)) is not None:
        return asked
    agent = registry._agents.get(run.agent) if run.agent_version is None and not run.result_schema else None
    if agent is not None:
        result = getattr(agent, "result", None)
        return result if isinstance(result, ResultType) else None
    schema = result_schema_of(run)
    return None if schema is None else ResultType(schema)


def is_type_here(run: Run) -> bool:
    """Whether `result_type_of` needs no query."""
    return run.id in _asked or (run.agent_version is None and not run.result_schema and run.agent in registry._agents)


@lru_cache(MOST)
def _schema(digest: str) -> dict[str, Any] | None:
    schema: dict[str, Any] | None = blob_value(Blob.objects.get(id=digest)).get("result_schema")
    return schema


def _may_be_typed(run: Run) -> bool:
    """Whether it is worth a query: a typed run's output is JSON, as text or as the replied value."""
    if run.output is None:  # not ended, or failed
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
    """Whether an operator has disabled this agent."""
    return Agent.objects.filter(address=agent, enabled=False).exists()


def forget() -> None:
    """For tests: the database is another, or empty again."""
    _schema.cache_clear()
    _asked.clear()
    bodies.forget()
