"""What docs/access.md shows is run here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from ravi_django import access
from ravi_django.checks import check_access_policy
from ravi_django.kernel import AgentNotFoundError, ForbiddenError, TopicId
from tests.support import world
from tests.support.docs import Page

pytestmark = pytest.mark.django_db

PAGE = Page("access")


def test_the_pages_agents_and_policy_hold(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    PAGE.run("shop/agents.py")
    ann = get_user_model().objects.create_user("ann")
    assert access.find(ann, "react/helper")
    with pytest.raises(AgentNotFoundError):
        access.find(ann, "react/refunds")
    assert world.agents_by_address["react/refunds"].public_signals == {"parcel_posted"}

    module = ModuleType("shop.access")
    vars(module).update(PAGE.run("shop/access.py"))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.access", module)
    settings.RAVI = {**settings.RAVI, **PAGE.run("settings.py")["RAVI"]}
    assert check_access_policy() == []
    secret, helper = TopicId("internal", "sales"), world.specs_find("react/helper")
    access.check_follow(ann, helper, TopicId("news", "sport"))
    with pytest.raises(ForbiddenError):
        access.check_follow(ann, helper, secret)
    assert access.policy().may_receive([ann], secret) == set()
    world.access_load.cache_clear()
