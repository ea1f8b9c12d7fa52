"""Access control: which users may run agents, send signals, emit, follow, and read journals.

Rules: docs/reference/access.md.

A site replaces the rules with its own subclass of `AccessPolicy`, named by RAVI["ACCESS_POLICY"]. Every surface (REST,
sockets, admin) asks here, and so do schedules and deliveries to follows, which act for their owners. Calls from Python
code are not checked.
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

from ravi_django.agents.messages import RESERVED
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.engine.lease.lease_state import HANDOFF
from ravi_django.kernel import AgentId, AgentNotFoundError, ForbiddenError, Priority, TopicId
from ravi_django.models import Agent, JournalEntry, Run
from ravi_django.people import site_rules
from ravi_django.runs.catalog import registry, specs
from ravi_django.users import has, permits

log = logging.getLogger("ravi.access")


class AccessPolicy:
    """The default rules. Only True allows. An exception refuses, and is logged.

    `user` is an authenticated user, never None. `agent` is a row of the model `Agent`; for an agent in code it may be
    unsaved. A method may query. It is also called in workers, without an HTTP request.
    """

    def may_see_agent(self, user: Any, agent: Agent) -> bool:
        """Whether lists show the agent. An agent that `user` may neither see nor run is a 404."""
        return self.may_run(user, agent)

    def may_run(self, user: Any, agent: Agent) -> bool:
        """Whether `user` may start runs of `agent`, and continue them: messages, retries, forks, signals."""
        return (
            admits(access_of(agent), user, agent)
            or permits(user, "ravi.run_agent")
            or permits(user, "ravi.run_agent", agent)
        )

    def may_signal(self, user: Any, run: Run, name: str) -> bool:
        """Whether `user`, who may see `run`, may send it a signal of this name. Not asked about reserved names."""
        return permits(user, "ravi.signal_run") or name in getattr(specs.agent_of(run), "public_signals", ())

    def may_emit(self, user: Any, topic: TopicId) -> bool:
        """Whether `user` may publish to `topic` over REST."""
        publishers = Agent.objects.filter(owner_id=user.pk, source=Agent.Source.ADMIN, spec__output_topic=str(topic))
        return topic.source == str(user.pk) or permits(user, "ravi.emit_topic") or publishers.exists()

    def may_follow(self, user: Any, agent: Agent, topic: TopicId) -> bool:
        """Whether `agent` may follow `topic` for `user`."""
        return self.may_run(user, agent)

    def may_receive(self, users: Sequence[Any], topic: TopicId) -> Collection[Any] | None:
        """The ids of those `users`, active owners of follows, who may get a message of `topic`; None: all. Asked once
        for a batch of deliveries. An exception delays the deliveries of the topic."""
        return None

    def may_choose_priority(self, user: Any, priority: Priority) -> bool:
        """Whether `user` may start a run with this priority over REST."""
        return priority <= Priority.NORMAL or permits(user, "ravi.choose_priority")

    def may_read_journal(self, user: Any, run: Run) -> bool:
        """Whether `user`, who may see `run`, may read its journal."""
        return conf.JOURNAL_FOR_OWNERS is True or permits(user, "ravi.view_journalentry")


def policy() -> AccessPolicy:
    """The site's policy. Raises ImportError for a wrong path, TypeError for a class that is not an AccessPolicy."""
    return _load(conf.ACCESS_POLICY)


@cache
def _load(path: str) -> AccessPolicy:
    made = import_string(path)
    if not (isinstance(made, type) and issubclass(made, AccessPolicy)):
        raise TypeError(f"{path} is not a subclass of ravi_django.access.AccessPolicy")
    return made()


def allows(question: str, *args: Any) -> bool:
    """The answer of the site's policy to `may_…`: only True allows; an exception is logged and refuses. Errors of an
    unreachable database are raised."""
    try:
        return getattr(policy(), question)(*args) is True
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        log.exception("access: %s failed, and refuses", question, extra={"action": "access.failed"})
        return False


def access_of(agent: Agent) -> registry.Access:
    """The `access` of an agent: from its registration in code, or from its row."""
    return registry.access_of(agent.address) if agent.address in registry._agents else agent.access


def admits(access: registry.Access, user: Any, agent: Agent) -> bool:
    """Whether the `access` of an agent allows `user` to run it."""
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


def find(user: Any, address: AgentId | str, session_id: UUID | None = None) -> specs.RunnableAgent:
    """The agent at this address, which `user` may run; with `session_id`, in that conversation. None may run all.

    Raises AgentNotFoundError when there is no such agent or it is hidden from `user`, ForbiddenError when they may only
    see it.
    """
    try:
        agent = specs.find_or_list(address) if user is None else specs.find(address)
    except AgentNotFoundError as error:
        raise error if user is None else not_found(user, address, error) from None
    if user is None or may_run(user, agent) or (session_id is not None and _was_handed(user, agent, session_id)):
        return agent
    if allows("may_see_agent", user, _row(agent)):
        raise ForbiddenError(f"you may see agent {agent.address}, but not run it")
    raise not_found(user, address)


def not_found(user: Any, address: AgentId | str, error: AgentNotFoundError | None = None) -> AgentNotFoundError:
    """With the agents that `user` may see. Only users who may see an agent learn that it is disabled."""
    if error is not None and error.is_disabled:
        row = Agent.objects.filter(address=str(address)).first()
        if row is not None and allows("may_see_agent", user, row):
            return error
    return AgentNotFoundError(address, registry.hint_for(address, agents_seen(user)))


def may_run(user: Any, agent: specs.RunnableAgent) -> bool:
    if _is_default("may_run") and agent.access == "authenticated":  # saves reading the row
        return bool(getattr(user, "is_authenticated", False) and user.is_active)
    return allows("may_run", user, _row(agent))


def agents_seen(user: Any) -> dict[str, Agent | None]:
    """The enabled agents that `user` may see: their sorted addresses, each with its row."""
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
    """Raises as `find` when `user` may no longer run the agent at the root of the run's tree."""
    root = run.root or run
    find(user, root.agent, root.session_id)


def check_signal(user: Any, run: Run, name: str) -> None:
    """Raises ForbiddenError, for reserved names too."""
    if name.startswith(RESERVED) or not allows("may_signal", user, run, name):
        raise ForbiddenError(
            f"you may not send the signal {name!r}: it is not in the public_signals of agent {run.agent}"
        )


def check_emit(user: Any, topic: TopicId) -> None:
    """Raises ForbiddenError."""
    if not allows("may_emit", user, topic):
        raise ForbiddenError(f"you may not emit to {topic}: you need ravi.emit_topic, or a topic of your own")


def check_journal(user: Any, run: Run) -> None:
    """Raises ForbiddenError."""
    if not allows("may_read_journal", user, run):
        raise ForbiddenError("you may not read the journals of runs: you need ravi.view_journalentry")


def check_follow(user: Any, agent: specs.RunnableAgent, topic: TopicId) -> None:
    """Raises AgentNotFoundError and ForbiddenError. The user None may follow all."""
    if user is None or allows("may_follow", user, _row(agent), topic):
        return
    if allows("may_see_agent", user, _row(agent)):
        raise ForbiddenError(f"{agent.address} may not follow {topic} for user {user.get_username()!r}")
    raise AgentNotFoundError(agent.address)


def check_priority(user: Any, priority: Priority) -> None:
    """Raises ForbiddenError."""
    if not allows("may_choose_priority", user, priority):
        raise ForbiddenError(f"priority {priority.name.lower()} needs the permission ravi.choose_priority")


def delivery_rights() -> Rights:
    """The policy for deliveries to follows, for their owners."""
    return Rights(_refused, by_access=_is_default("may_run") and _is_default("may_receive"))


def _refused(wanted: Collection[Wanted], agents: Mapping[str, Agent]) -> tuple[set[Wanted], dict[str, Exception]]:
    """The deliveries that the policy refuses, and the errors of its `may_receive` by topic. A constant number of
    queries with Django's own backend of permissions."""
    users = get_user_model()._default_manager.in_bulk({owner for _, owner, _ in wanted})
    site_rules.cache_permissions(users.values())
    receivers: dict[str, Collection[Any] | None] = {}
    failed: dict[str, Exception] = {}
    for topic in {topic for _, _, topic in wanted}:
        try:
            with transaction.atomic():  # a failed query of the policy breaks only this
                receiving = policy().may_receive(list(users.values()), TopicId.parse(topic))
                receivers[topic] = None if receiving is None else set(receiving)
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


def _row(agent: specs.RunnableAgent) -> Agent:
    address = str(agent.address)
    return Agent.objects.filter(address=address).defer("spec").first() or Agent(address=address)


def _was_handed(user: Any, agent: specs.RunnableAgent, session_id: UUID) -> bool:
    """Whether an agent that `user` may run has handed this conversation over to this one, also in several steps."""
    runs = Run.objects.filter(session_id=session_id, owner_id=user.pk, parent=None)
    rows = JournalEntry.objects.filter(run__in=runs, kind=HANDOFF, error__isnull=True)
    handed = [(row["from"], row["to"]) for row in rows.values_list("result", flat=True) if row]
    seen, new = set[str](), {str(agent.address)}
    while new:
        seen |= new
        new = {caller for caller, callee in handed if callee in new} - seen
    return any(_may_still_run(user, address) for address in sorted(seen - {str(agent.address)}))


def _may_still_run(user: Any, address: str) -> bool:
    try:
        return may_run(user, specs.find(address))
    except AgentNotFoundError:
        return False


Wanted = tuple[str, Any, str]  # a delivery: address of the agent, id of the owner, topic


@dataclass(frozen=True, slots=True)
class Rights:
    """The site's access policy for deliveries to follows that have an owner."""

    # (deliveries, rows of the agents by address) -> the refused deliveries, and the errors by topic
    refused: Callable[[Collection[Wanted], Mapping[str, Agent]], tuple[set[Wanted], dict[str, Exception]]]
    by_access: bool  # a delivery to an agent that is open to every user is never refused
