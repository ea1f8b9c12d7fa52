"""RAVI["FOLLOW_POLICY"]: a site's own class."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser

from ravi_django.checks import check_follow_policy
from ravi_django.kernel import AgentId, ForbiddenError, TopicId
from ravi_django.runtime import FollowPolicy, policies

NEWS, AGENT = TopicId("news", "sport"), AgentId("test", "code")


class Truthy(FollowPolicy):
    """An `async def` by mistake gives something that is no False."""

    def may_follow(self, user, agent, topic):
        return "yes"

    def may_emit(self, user, topic):
        return "yes"


class Broken(FollowPolicy):
    def __init__(self):
        raise RuntimeError("no key")


def not_a_class(): ...


def here(name):
    return f"{__name__}.{name}"


def use(settings, path):
    settings.RAVI = {**getattr(settings, "RAVI", {}), "FOLLOW_POLICY": path}


def test_without_one_everybody_but_the_anonymous_may():
    ada = get_user_model()(username="ada")
    policies.check_follow(ada, AGENT, NEWS)
    policies.check_emit(None, NEWS)

    with pytest.raises(ForbiddenError):
        policies.check_follow(AnonymousUser(), AGENT, NEWS)
    with pytest.raises(ForbiddenError):
        policies.check_emit(AnonymousUser(), NEWS)
    assert policies.policy().may_receive([ada], NEWS) is None


def test_only_true_allows(settings):
    use(settings, here("Truthy"))

    assert type(policies.policy()) is Truthy
    with pytest.raises(ForbiddenError, match="the site may not follow news/sport with test/code"):
        policies.check_follow(None, AGENT, NEWS)
    with pytest.raises(ForbiddenError, match="the site may not emit to news/sport"):
        policies.check_emit(None, NEWS)


@pytest.mark.parametrize("path", [None, here("Truthy"), "ravi_django.runtime.FollowPolicy"])
def test_the_check_finds_nothing_wrong(settings, path):
    use(settings, path)

    assert check_follow_policy() == []


@pytest.mark.parametrize(
    "path", ["no.such.module", here("Absent"), here("not_a_class"), "builtins.dict", "word", here("Broken"), 7]
)
def test_the_check_names_what_is_wrong(settings, path):
    use(settings, path)

    (found,) = check_follow_policy()

    assert (found.id, repr(path) in found.msg, "FOLLOW_POLICY" in found.hint) == ("ravi.E016", True, True)
