"""What docs/access.md shows is run here."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from ravi_django import access
from ravi_django.checks import check_access_policy
from ravi_django.kernel import AgentNotFoundError, ForbiddenError, TopicId
from ravi_django.runtime import registry, specs

pytestmark = pytest.mark.django_db

PAGE = (Path(__file__).resolve().parents[2] / "docs/access.md").read_text()


def block(name: str) -> dict[str, Any]:
    """The page's block that begins with the comment `# name`, run."""
    found = re.search(rf"```python\n# {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"the page has no block {name}"
    names: dict[str, Any] = {"__name__": name}
    exec(compile(found.group(1), name, "exec"), names)
    return names


def test_the_pages_agents_and_policy_hold(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    block("shop/agents.py")
    ann = get_user_model().objects.create_user("ann")
    assert access.find(ann, "react/helper")
    with pytest.raises(AgentNotFoundError):
        access.find(ann, "react/refunds")
    assert registry._agents["react/refunds"].public_signals == {"parcel_posted"}

    module = ModuleType("shop.access")
    vars(module).update(block("shop/access.py"))
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.access", module)
    settings.RAVI = {**settings.RAVI, **block("settings.py")["RAVI"]}
    assert check_access_policy() == []
    secret, helper = TopicId("internal", "sales"), specs.find("react/helper")
    access.check_follow(ann, helper, TopicId("news", "sport"))
    with pytest.raises(ForbiddenError):
        access.check_follow(ann, helper, secret)
    assert access.policy().may_receive([ann], secret) == set()
    access._load.cache_clear()
