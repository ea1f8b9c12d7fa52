"""The models of the agents: what is wrong with their names and keys, and whether they need litellm."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ravi_django.agents.tools.toolbox import sub_agents_of
from ravi_django.calls.llm import pricing
from ravi_django.calls.llm.names import Fault
from ravi_django.calls.rehearsal.model import REHEARSAL
from ravi_django.kernel import ChatModel
from ravi_django.runs.catalog import registry, specs

log = logging.getLogger("ravi.worker")

OfAgents = Iterable[tuple[str, ChatModel]]  # the address of an agent, and its model


class Used(NamedTuple):
    """A model, and the addresses of the agents that use it, maybe as a fallback."""

    model: ChatModel
    fault: Fault | None
    agents: list[str]


def in_code() -> Iterator[tuple[str, ChatModel]]:
    """The models of registered agents."""
    for address, agent in list(registry._agents.items()):
        if (model := getattr(agent, "model", None)) is not None:
            yield address, model


def in_rows() -> Iterator[tuple[str, ChatModel]]:
    """The models of the agents in the database that can be run."""
    for address, spec in specs._rows().exclude(address__in=list(registry._agents)).values_list("address", "spec"):
        if name := spec.get("model"):
            yield address, specs.build_model(name, fallbacks=spec.get("fallbacks") or ())


def check_priced(runnable: specs.RunnableAgent, budget: Mapping[str, Any] | None) -> None:
    """Raises UnpricedModelError for a budget in dollars and a model without a price. The budget is that of the run or
    of an agent; it counts for the agent and for those that it is configured to delegate to."""
    is_limited = "max_cost_usd" in (budget or ())
    if runnable.version is not None:
        spec = runnable.spec
        if spec.get("model") and (is_limited or (spec.get("budget") or {}).get("max_cost_usd") is not None):
            pricing.check_priced(specs.build_model(spec["model"], fallbacks=spec.get("fallbacks") or ()))
        return
    agents: list[tuple[Any, bool]] = [(registry._agents[str(runnable.address)], is_limited)]
    seen: set[tuple[str, bool]] = set()
    while agents:
        agent, is_limited = agents.pop()
        stated = getattr(getattr(agent, "budget", None), "budget", None)
        is_limited = is_limited or getattr(stated, "max_cost_usd", None) is not None
        if (key := (str(agent.id), is_limited)) in seen:
            continue
        seen.add(key)
        if is_limited and (model := getattr(agent, "model", None)) is not None:
            pricing.check_priced(model)
        configured = (registry._agents.get(str(config.address)) for config in getattr(agent, "sub_agents", ()))
        agents += [(one, is_limited) for one in (*sub_agents_of(agent), *configured) if one is not None]


def used(models: OfAgents, processes: Collection[Collection[str] | None] = (None,)) -> list[Used]:
    """Each model with its fault in one of the processes, which have these variables of keys; None is this process."""
    by_name: dict[tuple[str, str], Used] = {}
    for address, model in models:
        for one in getattr(model, "models", (model,)):
            look = getattr(one, "fault", None)  # not of the rehearsal model, or of a class of the site
            errors = [fault for variables in processes if (fault := look(variables))] if look else [None]
            fault = next(iter(errors), None)
            by_name.setdefault((one.name, str(fault)), Used(one, fault, [])).agents.append(address)
    return [by_name[key] for key in sorted(by_name)]


def uses_litellm() -> bool:
    """Whether an agent of this process calls models through litellm: then import it early."""
    needs = (getattr(model, "needs_library", None) for _, model in in_code())
    return any(need() for need in needs if need) or (
        specs._rows().filter(spec__has_key="model").exclude(spec__model=REHEARSAL).exists()
    )


def log_errors() -> None:
    """Log the models of this process whose calls will fail, when a server or worker starts."""
    for model, fault, agents in used(in_code()):
        if fault is not None:
            log.warning("%s (%s)", fault, ", ".join(agents), extra={"action": "model.fault", "model": model.name})
