"""Access control: which users may run agents, send signals, emit, follow, and read journals. Rules: docs/access.md.

A site replaces the rules with its own subclass of `AccessPolicy`, named by RAVI["ACCESS_POLICY"]. Every surface (REST,
sockets, admin) asks here, and so does what runs on behalf of an owner: a schedule's tick and a delivery to a follow.
Python code is not asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import InterfaceError, OperationalError
from django.utils.module_loading import import_string

from ravi_django.agents.public_signals import RESERVED
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel import AgentId, AgentNotFoundError, ForbiddenError, Priority, TopicId
from ravi_django.models import Agent, JournalEntry, Run
from ravi_django.runtime.catalog import registry, specs
from ravi_django.runtime.lease.gate import HANDOFF
from ravi_django.runtime.people import addressees
from ravi_django.users import has, permits

log = logging.getLogger("ravi.access")


class AccessPolicy:
    """The default rules. Only True allows. An exception refuses, and is logged.

    `user` is an authenticated user, never None. `agent` is a row of the model `Agent`; that of an agent which is code
    may not be saved yet. A method may query. It is also called in workers, where there is no request.
    """

    def may_see_agent(self, user: Any, agent: Agent) -> bool:
        """Whether the agent is in lists. An agent that `user` may neither see nor run is a 404."""
        return self.may_run(user, agent)

    def may_run(self, user: Any, agent: Agent) -> bool:
        """Whether `user` may start runs of `agent`, and continue them: messages, retries, forks, signals."""
        return (
            admits(access_of(agent), user, agent)
            or permits(user, "ravi.run_agent")
            or permits(user, "ravi.run_agent", agent)
        )

    def may_signal(self, user: Any, run: Run, name: str) -> bool:
        """Whether `user`, who sees `run`, may send it a signal of this name. Reserved names are refused before."""
        return permits(user, "ravi.signal_run") or name in getattr(specs.agent_of(run), "public_signals", ())

    def may_emit(self, user: Any, topic: TopicId) -> bool:
        """Whether `user` may publish to `topic` over REST."""
        own = Agent.objects.filter(owner_id=user.pk, source=Agent.Source.ADMIN, spec__output_topic=str(topic))
        return topic.source == str(user.pk) or permits(user, "ravi.emit_topic") or own.exists()

    def may_follow(self, user: Any, agent: Agent, topic: TopicId) -> bool:
        """Whether `agent` may follow `topic` for `user`."""
        return self.may_run(user, agent)

    def may_receive(self, users: Sequence[Any], topic: TopicId) -> Collection[Any] | None:
        """The ids of those `users`, active owners of follows, to whom a message of `topic` may be delivered; None: all.
        Asked once for a batch of deliveries. An exception puts the topic's deliveries off."""
        return None

    def may_choose_priority(self, user: Any, priority: Priority) -> bool:
        """Whether `user` may start a run with this priority over REST."""
        return priority <= Priority.NORMAL or permits(user, "ravi.choose_priority")

    def may_read_journal(self, user: Any, run: Run) -> bool:
        """Whether `user`, who sees `run`, may read its journal."""
        return conf.JOURNAL_FOR_OWNERS is True or permits(user, "ravi.view_journalentry")


def policy() -> AccessPolicy:
    """The site's policy. Raises ImportError for a wrong path, TypeError for a class that is no AccessPolicy."""
    return _load(conf.ACCESS_POLICY)


@cache
def _load(path: str) -> AccessPolicy:
    made = import_string(path)
    if not (isinstance(made, type) and issubclass(made, AccessPolicy)):
        raise TypeError(f"{path} is no subclass of ravi_django.access.AccessPolicy")
    return made()


def allows(question: str, *given: Any) -> bool:
    """What the site's policy answers to `may_…`: only True allows; an exception is logged and refuses. A database that
    cannot be reached is no answer: its error is raised."""
    try:
        return getattr(policy(), question)(*given) is True
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        log.exception("access: %s failed, and refuses", question, extra={"action": "access.failed"})
        return False


# --------------------------------------------------------------------------------------------------- the rules


def access_of(agent: Agent) -> registry.Access:
    """The `access` of an agent: as code registered it, or of its row."""
    return registry.access_of(agent.address) if agent.address in registry._agents else agent.access


def admits(access: registry.Access, user: Any, agent: Agent) -> bool:
    """Whether an agent's `access` lets `user` run it."""
    if not (getattr(user, "is_authenticated", False) and user.is_active):
        return False
    if callable(access):
        try:
            return access(user, agent) is True
        except Exception:
            log.exception("agent %s: its access failed, and refuses", agent, extra={"action": "access.failed"})
            return False
    if access == "staff":
        return has(user, "is_staff")
    return access == "authenticated" or (access.startswith("perm:") and permits(user, access[len("perm:") :]))


# --------------------------------------------------------------------------------------------------- one user


def find(user: Any, address: AgentId | str, session_id: UUID | None = None) -> specs.Found:
    """The agent that `user` starts a run of; with a session, in that conversation. None is nobody, who may run all.

    Raises AgentNotFoundError when there is none or it is hidden from `user`, ForbiddenError when they may only see it.
    """
    found = specs.find(address)
    if user is None or may_run(user, found) or (session_id is not None and _was_handed(user, found, session_id)):
        return found
    if allows("may_see_agent", user, _row(found)):
        raise ForbiddenError(f"you may see agent {found.address}, but not run it")
    raise AgentNotFoundError(address)


def may_run(user: Any, found: specs.Found) -> bool:
    if _is_default("may_run") and found.access == "authenticated":  # saves reading the row
        return bool(getattr(user, "is_authenticated", False) and user.is_active)
    return allows("may_run", user, _row(found))


def agents_seen(user: Any) -> dict[str, Agent | None]:
    """The enabled agents that `user` may see: addresses in their order, each with its row."""
    rows = {row.address: row for row in Agent.objects.all()}
    code = set(registry.known_addresses())
    return {
        address: rows.get(address)
        for address in sorted(code | rows.keys())
        if _is_enabled(address in code, rows.get(address))
        and allows("may_see_agent", user, rows.get(address) or Agent(address=address))
    }


def _is_enabled(is_code: bool, row: Agent | None) -> bool:
    if row is None:
        return is_code
    return row.enabled and (is_code or row.source == Agent.Source.ADMIN)


def continue_run(user: Any, run: Run) -> None:
    """Raises what `find` does, where `user` may no longer run the agent at the root of the run's tree."""
    root = run.root or run
    find(user, root.agent, root.session_id)


def check_signal(user: Any, run: Run, name: str) -> None:
    """Raises ForbiddenError. Reserved names are nobody's."""
    if name.startswith(RESERVED) or not allows("may_signal", user, run, name):
        raise ForbiddenError(f"agent {run.agent} takes no signal {name!r} from you: it is none of its public_signals")


def check_emit(user: Any, topic: TopicId) -> None:
    """Raises ForbiddenError."""
    if not allows("may_emit", user, topic):
        raise ForbiddenError(f"you may not emit to {topic}; that takes ravi.emit_topic, or a topic of your own")


def check_journal(user: Any, run: Run) -> None:
    """Raises ForbiddenError."""
    if not allows("may_read_journal", user, run):
        raise ForbiddenError("you may not read the journals of runs; that takes ravi.view_journalentry")


def check_follow(user: Any, found: specs.Found, topic: TopicId) -> None:
    """Raises AgentNotFoundError and ForbiddenError. None is nobody, who may follow all."""
    if user is None or allows("may_follow", user, _row(found), topic):
        return
    if allows("may_see_agent", user, _row(found)):
        raise ForbiddenError(f"{found.address} may not follow {topic} for user {user.get_username()!r}")
    raise AgentNotFoundError(found.address)


def check_priority(user: Any, priority: Priority) -> None:
    """Raises ForbiddenError."""
    if not allows("may_choose_priority", user, priority):
        raise ForbiddenError(f"priority {priority.name.lower()} takes the permission ravi.choose_priority")


def delivery_rights() -> Rights:
    """What deliveries to follows ask on behalf of their owners."""
    return Rights(_refused, by_access=_is_default("may_run") and _is_default("may_receive"))


def _refused(wanted: Collection[Wanted], agents: Mapping[str, Agent]) -> tuple[set[Wanted], dict[str, Exception]]:
    """The deliveries that the policy refuses, and the topics that its `may_receive` raises for. A constant number of
    queries where permissions are those of Django's own backend."""
    users = get_user_model()._default_manager.in_bulk({owner for _, owner, _ in wanted})
    addressees.cache_permissions(users.values())
    receivers: dict[str, Collection[Any] | None] = {}
    failed: dict[str, Exception] = {}
    for topic in {topic for _, _, topic in wanted}:
        try:
            with transaction.atomic():  # a query of its own that fails ends with it
                found = policy().may_receive(list(users.values()), TopicId.parse(topic))
                receivers[topic] = None if found is None else set(found)
        except Exception as error:
            failed[topic] = error
    runs = {
        (agent, owner): owner in users and allows("may_run", users[owner], agents[agent])
        for agent, owner in {(agent, owner) for agent, owner, topic in wanted if topic not in failed}
    }
    refused = set()
    for agent, owner, topic in wanted:
        if topic not in failed:
            ids = receivers[topic]
            if not runs[agent, owner] or (ids is not None and owner not in ids):
                refused.add((agent, owner, topic))
    return refused, failed


def _is_default(question: str) -> bool:
    try:
        return getattr(type(policy()), question) is getattr(AccessPolicy, question)
    except Exception:  # `allows` logs it, and refuses
        return False


def _row(found: specs.Found) -> Agent:
    place = str(found.address)
    return Agent.objects.filter(address=place).defer("spec").first() or Agent(address=place)


def _was_handed(user: Any, found: specs.Found, session_id: UUID) -> bool:
    """Whether an agent that `user` may run handed this conversation over to this one, maybe by others."""
    runs = Run.objects.filter(session_id=session_id, owner_id=user.pk, parent=None)
    rows = JournalEntry.objects.filter(run__in=runs, kind=HANDOFF, error__isnull=True)
    handed = [(row["from"], row["to"]) for row in rows.values_list("result", flat=True) if row]
    seen, new = set[str](), {str(found.address)}
    while new:
        seen |= new
        new = {giver for giver, taker in handed if taker in new} - seen
    return any(_may_still_run(user, address) for address in sorted(seen - {str(found.address)}))


def _may_still_run(user: Any, address: str) -> bool:
    try:
        return may_run(user, specs.find(address))
    except AgentNotFoundError:
        return False


Wanted = tuple[str, Any, str]  # a delivery to an agent, for its owner's id, of a topic


@dataclass(frozen=True, slots=True)
class Rights:
    """What the site's access policy says of deliveries to follows that have an owner."""

    # Of these deliveries, to these agents (rows, by address): the refused ones, and the topics that it raises for.
    refused: Callable[[Collection[Wanted], Mapping[str, Agent]], tuple[set[Wanted], dict[str, Exception]]]
    by_access: bool  # none is refused where the agent is open to every user
