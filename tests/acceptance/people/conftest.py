"""Imports are inside: when this is loaded, Django's settings are not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def paid() -> list[str]:
    """Whom the tool has paid, in order."""
    return []


@pytest.fixture
def pay(paid: list[str]) -> Any:
    from ravi_django import tool

    @tool(risk="critical", effect="at_most_once", timeout=5)
    def pay(to: str, amount: int) -> str:
        """Pay somebody."""
        paid.append(f"{to} {amount}")
        return f"paid {to} {amount}"

    return pay


@pytest.fixture
def finance(django_user_model: Any) -> list[Any]:
    """Two people who may approve."""
    from django.contrib.auth.models import Group

    group = Group.objects.create(name="finance")
    users = [django_user_model.objects.create_user(name) for name in ("ann", "bob")]
    group.user_set.add(*users)
    return users


@pytest.fixture
def clock() -> Iterator[Any]:
    from ravi_django.testing import FakeClock

    with FakeClock() as clock:
        yield clock
