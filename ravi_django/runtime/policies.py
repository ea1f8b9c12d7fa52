"""Who may follow, emit and receive. A site's own rule is a FollowPolicy, named by RAVI["FOLLOW_POLICY"]."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from django.utils.module_loading import import_string

from ravi_django.conf import conf
from ravi_django.kernel import AgentId, ForbiddenError, TopicId


class FollowPolicy:
    """The rule of a site that has no other: one follows with any agent that one may run, and emits to the followers of
    one's tenant. Subclass it and override what differs; RAVI["FOLLOW_POLICY"] has the dotted path.

    `user` is None for what nobody owns: the site's own code, a run without an owner. Called on a worker too, so there
    is no request; a query is allowed. Only True allows. One that raises ends what was asked, and nothing is written.
    """

    def may_follow(self, user: Any, agent: AgentId, topic: TopicId) -> bool:
        """Whether `user`'s `agent` may follow `topic`. That the agent exists and is enabled is looked at before."""
        return user is None or bool(user.is_authenticated)

    def may_emit(self, user: Any, topic: TopicId) -> bool:
        """Whether `user` may publish to `topic`."""
        return user is None or bool(user.is_authenticated)

    def may_receive(self, users: Sequence[Any], topic: TopicId) -> Collection[Any] | None:
        """The ids of those `users`, owners of follows, whom a message to `topic` may be delivered to; None: all. Asked
        at each delivery, for a batch of followers at once; who is no longer active is left out before."""
        return None


def policy() -> FollowPolicy:
    """The site's. Raises ImportError for a path that is none, TypeError for what is no FollowPolicy."""
    return _load(conf.FOLLOW_POLICY)


@cache
def _load(path: str | None) -> FollowPolicy:
    if path is None:
        return FollowPolicy()
    made = import_string(path)
    if not (isinstance(made, type) and issubclass(made, FollowPolicy)):
        raise TypeError(f"{path} is no subclass of ravi_django.runtime.FollowPolicy")
    return made()


def check_follow(user: Any, agent: AgentId, topic: TopicId) -> None:
    """Raises ForbiddenError."""
    if policy().may_follow(user, agent, topic) is not True:
        raise ForbiddenError(f"{_who(user)} may not follow {topic} with {agent}: the site's follow policy refuses it")


def check_emit(user: Any, topic: TopicId) -> None:
    """Raises ForbiddenError."""
    if policy().may_emit(user, topic) is not True:
        raise ForbiddenError(f"{_who(user)} may not emit to {topic}: the site's follow policy refuses it")


def _who(user: Any) -> str:
    return "the site" if user is None else f"user {user.get_username()!r}"
