"""The agents in the code of this process, and the tools for agents without code."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from ravi_django.agents.messages import checked_names
from ravi_django.agents.middleware import Hooks, MiddlewarePipeline
from ravi_django.agents.tools.delegate import DelegateTool
from ravi_django.agents.tools.toolbox import Toolbox, sub_agents_of
from ravi_django.conf import conf
from ravi_django.kernel import Agent, AgentId, AgentNotFoundError, ConflictError, InvalidInputError, Tool
from ravi_django.kernel.checks import did_you_mean, listed
from ravi_django.kernel.json_values import digest_of

# Which users may run an agent: one of LEVELS, "perm:app.codename", or a function `(user, agent row) -> bool`.
Access = str | Callable[[Any, Any], bool]
LEVELS = ("private", "staff", "authenticated")
DEFAULT_ACCESS: Access = "private"

_agents: dict[str, Agent] = {}
_access: dict[str, Access] = {}  # of registered agents, by address
_by_team: set[str] = set()  # addresses that were registered as members of another agent alone
_origins: dict[str, tuple[str, str]] = {}  # by address: the module and line of its registration, and its class
conflicts: list[str] = []  # second agents of one address, met while the apps were loaded: see `checks`
_tools: dict[str, Tool] = {}
_built_in: Callable[[], Iterable[Tool]] = tuple  # makes the tools that need no configuration
_known: Toolbox | None = None  # all tools; None: collect them again
_specs: dict[tuple[str, int | None], tuple[Agent, str, dict[str, Any]]] = {}
_lock = threading.RLock()


def register(agent: Agent, *, access: Access | None = None, replace: bool = False) -> Agent:
    """Register an agent under its address. Returns the agent. `replace`: in place of an earlier one.

    `access` names the users who may run it over REST, sockets, admin, schedules and follows: "private" (the default:
    holders of `ravi.run_agent`), "staff", "authenticated", "perm:app.codename", or a function `(user, agent) -> bool`.
    Python code may run every agent. See docs/reference/access.md.

    Sub-agents and agents among its tools that are given as objects are registered with it, as private, unless their
    address is registered already.

    Raises InvalidInputError when it has no `id: AgentId` or no async `run`, for invalid `middleware`, `hooks` or
    `public_signals`, and for an unknown `access`. Raises ConflictError when another module or line has registered this
    address; while Django loads the apps the first agent stays instead, and `manage.py check` reports the second.
    """
    _check(agent)
    caller, kind = sys._getframe(1), type(agent)
    origin = f"{caller.f_globals.get('__name__')}:{caller.f_lineno}", f"{kind.__module__}.{kind.__qualname__}"
    if not replace and (fault := _conflict(agent, origin)):
        if apps.ready:
            raise ConflictError(f"{fault}. {CONFLICT_FIX}")
        conflicts.append(fault)
        return agent
    access_rule = DEFAULT_ACCESS if access is None else access
    if not callable(access_rule):
        check_access(access_rule)
    members = list(_team_of(agent, {id(agent)}))
    for member in members:  # first: an invalid member leaves the whole team unregistered
        _check(member)
    global _known
    with _lock:
        for member in members:
            address = str(member.id)
            if address not in _agents or address in _by_team:
                _agents[address] = member
                _access[address] = DEFAULT_ACCESS
                _by_team.add(address)
        _agents[str(agent.id)] = agent
        _origins[str(agent.id)] = origin
        _access[str(agent.id)] = access_rule
        _by_team.discard(str(agent.id))
        _known = None
    return agent


def _conflict(agent: Agent, origin: tuple[str, str]) -> str:
    address = str(agent.id)
    first = _origins.get(address, origin)
    if first == origin or _agents.get(address) is agent:  # also a module that was imported again
        return ""
    return f"{address} is registered twice: {first[1]} by {first[0]}, and {origin[1]} by {origin[0]}"


CONFLICT_FIX = "Give one of them another key, or call register(…, replace=True) where one replaces the other"


def check_access(value: Any) -> str:
    """An `access` that a row can hold. Raises InvalidInputError."""
    permission = value.removeprefix("perm:") if isinstance(value, str) and value.startswith("perm:") else None
    if value in LEVELS or (permission is not None and all(permission.partition("."))):
        return str(value)
    raise InvalidInputError(
        f"access is {value!r}; use {', '.join(LEVELS)} or perm:app.codename, as perm:shop.refund", field="access"
    )


def access_of(address: AgentId | str) -> Access:
    """The `access` that an agent was registered with."""
    return _access.get(str(address), "private")


def _check(agent: Agent) -> None:
    if isinstance(agent, type):
        raise InvalidInputError(f"{agent.__name__} is a class; register an object of it: register({agent.__name__}(…))")
    if not isinstance(getattr(agent, "id", None), AgentId):
        raise InvalidInputError(f"{agent!r} needs an attribute id of type AgentId", field="id")
    _check_run(agent, getattr(agent, "run", None))
    _check_chains(agent)
    context: Any = getattr(agent, "context", None)
    if isinstance(name := getattr(agent, "model", None), str):
        from ravi_django.calls.llm import LLMFactory

        set_model(agent, LLMFactory(name).build())
    if getattr(context, "takes_history", False):
        from ravi_django.engine.lease.history import DjangoHistoryProvider

        context.history = DjangoHistoryProvider()
    checked_names(getattr(agent, "public_signals", ()))


def _check_run(agent: Agent, run: Any) -> None:
    fix = "write async def run(self, ctx, inbox)"
    if not any(map(inspect.iscoroutinefunction, (run, inspect.unwrap(run)))):
        text = f"agent {agent.id} has no async method run (a decorator of one needs functools.wraps): {fix}"
        raise InvalidInputError(text, field="run")
    try:
        inspect.signature(run).bind("ctx", "inbox")
    except TypeError as error:
        text = f"run of agent {agent.id} cannot take ctx and inbox ({error}): {fix}"
        raise InvalidInputError(text, field="run") from None


def set_model(agent: Any, model: Any) -> None:
    """Give an agent another model."""
    agent.model = model
    if (context := getattr(agent, "context", None)) is not None:
        context.model = model
    for key in [key for key in _specs if key[0] == str(agent.id)]:
        _specs.pop(key, None)


def _team_of(agent: Agent, seen: set[int]) -> Iterator[Agent]:
    """All agents below, each object once: agents may have each other as tools."""
    for member in sub_agents_of(agent):
        if id(member) not in seen:
            seen.add(id(member))
            yield from _team_of(member, seen)
            yield member


def _check_chains(agent: Agent) -> None:
    """Check middleware and hooks: without them no run can start."""
    readers: dict[str, Any] = {"middleware": MiddlewarePipeline.of, "hooks": Hooks.of}
    for field, read in readers.items():
        try:
            read(getattr(agent, field, None))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"agent {agent.id} has {field} that cannot be read: {error}", field=field) from None


def unregister(address: AgentId | str) -> None:
    global _known
    with _lock:
        _agents.pop(str(address), None)
        _access.pop(str(address), None)
        _origins.pop(str(address), None)
        _by_team.discard(str(address))
        _known = None


@contextmanager
def restored() -> Iterator[None]:
    """Registrations inside are undone at the end, and may replace those from outside."""
    global _known
    saved: list[tuple[Any, Any]] = [(one, one.copy()) for one in (_agents, _access, _origins, _tools, _by_team)]
    _origins.clear()
    try:
        yield
    finally:
        with _lock:
            for one, before in saved:
                one.clear()
                one.update(before)
            _known = None


def register_tool(*tools: Any) -> None:
    """Register tools by name, for agents that are edited in the admin; a later one replaces an earlier.

    Takes the same as an agent's `tools`: tools, functions with @tool, plain functions. Call it where agents are
    registered, so that web processes and workers have the same tools. Raises TypeError or ValueError for other values.
    """
    global _known
    toolbox = Toolbox(tools)
    with _lock:
        _tools.update({tool.name: tool for tool in toolbox})
        _known = None


def register_built_in(make: Callable[[], Iterable[Tool]]) -> None:
    """Register the built-in tools; `make` is called when they are first needed."""
    global _built_in, _known
    with _lock:
        _built_in, _known = make, None


def known_tools() -> Toolbox:
    """Every tool that a spec may name: the built-in ones that need no configuration, those of the registered agents,
    and those of `register_tool`. Of several with one name the last in this order counts. The site's own are listed
    first.

    The same object until something is registered.
    """
    global _known
    with _lock:
        if _known is None:
            built_in = Toolbox(_built_in())
            known = Toolbox(built_in)
            for agent in _agents.values():
                with suppress(TypeError, ValueError):  # a custom agent may use `tools` for something else
                    for tool in Toolbox.of(getattr(agent, "tools", None)):
                        if not isinstance(tool, DelegateTool):  # it works inside its orchestrator alone
                            known.add(tool)
            for tool in _tools.values():
                known.add(tool)
            _known = Toolbox(sorted(known, key=lambda tool: tool.name in built_in))
        return _known


def get_agent(address: AgentId | str) -> Agent:
    """The agent object behind an address. Raises AgentNotFoundError."""
    try:
        return _agents[str(address)]
    except KeyError:
        raise AgentNotFoundError(address, hint_for(address, _agents)) from None


def hint_for(address: object, known: Iterable[str]) -> str:
    """The part of an AgentNotFoundError that lists the known agents; empty if there are none."""
    names = sorted(known)
    return f"{did_you_mean(address, names) or '.'} Registered agents: {listed(names)}" if names else ""


def near_key(key: object, known: Iterable[str]) -> str:
    """The end of an error about an address without a type: `. Did you mean 'react/helper'?`"""
    by_key = {name.rpartition("/")[2]: name for name in sorted(known)}
    near = get_close_matches(str(key)[:100], by_key, 1)
    return f". Did you mean {by_key[near[0]]!r}?" if near else ""


def known_addresses() -> list[str]:
    return list(_agents)


def pinned_spec(agent: Agent, version: int | None = None) -> tuple[str, dict[str, Any]]:
    """The digest of an agent's spec, and the spec. Computed once for an agent object."""
    key = str(agent.id), version
    known = _specs.get(key)
    if known is None or known[0] is not agent:
        spec = spec_of(agent)
        known = _specs[key] = (agent, digest_of(spec), spec)
    return known[1], known[2]


def spec_of(agent: Agent) -> dict[str, Any]:
    """An agent's description of itself: JSON, stored with its runs and shown in the admin."""
    describe = getattr(agent, "spec", None)
    spec: dict[str, Any] = describe() if callable(describe) else {}
    return {"class": type(agent).__name__, **spec}


def autodiscover() -> None:
    """Import RAVI["AGENTS_MODULE"] of each installed app; of a package also its modules, but for `_…` and `test…`."""
    if conf.AGENTS_MODULE is None:
        return
    autodiscover_modules(conf.AGENTS_MODULE)
    for app in apps.get_app_configs():
        package = sys.modules.get(f"{app.name}.{conf.AGENTS_MODULE}")
        for module in iter_modules(getattr(package, "__path__", [])):
            if not module.name.startswith(("_", "test")):
                import_module(f"{app.name}.{conf.AGENTS_MODULE}.{module.name}")


def watch_modules(sender: Any, **kwargs: Any) -> None:
    """Let `runserver` reload for a new file in <app>/agents/, which changes the folder."""
    for app in apps.get_app_configs() if conf.AGENTS_MODULE is not None else ():
        folder = Path(app.path, *conf.AGENTS_MODULE.split("."))
        if folder.is_dir():
            sender.watch_dir(folder, "*.py")  # for Watchman
            sender.extra_files.add(folder)  # Django's own reloader looks at times of known files alone
