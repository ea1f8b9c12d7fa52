"""What is refused of a source that code adds: secrets that are none, and options that are written here."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django.kernel import InvalidInputError
from ravi_django.models import Source
from tests.support import world
from tests.support.runs import code
from tests.support.world import add_source, secrets_of

pytestmark = pytest.mark.django_db(transaction=True)

FEED = "https://example.com/feed.xml"


@pytest.fixture(autouse=True)
def agent() -> None:
    code(lambda ctx, inbox: None)


def a_webhook(**given: Any) -> Source:
    return add_source("webhook", "", "test/code", **given)


@pytest.mark.parametrize(
    "secret", ["fifteen of them", "a" * 20 + "," + "b" * 20, "," * 20, "a" * 20 + ",", "tiger", "x" * 151]
)
def test_a_secret_that_is_weak_or_would_be_two_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^secret: 16 to 150 characters and no comma") as refused:
        a_webhook(secret=secret)

    assert refused.value.field == "secret" and secret not in str(refused.value)
    assert not Source.objects.exists()


@pytest.mark.parametrize("secret", ["", "sixteen of them.", "x" * 150])
def test_a_secret_of_ones_own_is_taken_and_has_room_for_the_next(secret: str) -> None:
    source = a_webhook(secret=secret)

    second = world.make_secret(source)

    source.refresh_from_db()
    assert secrets_of(source) == [second, *filter(None, [secret])]


def test_a_row_with_two_secrets_or_a_short_one_has_no_fault() -> None:
    source = a_webhook()
    for secret in ("tiger", f"{'a' * 43},{'b' * 43}"):
        Source.objects.update(secret=secret)

        assert list(world.source_rules_faults(Source.objects.get(id=source.id))) == []


@pytest.mark.parametrize("name", world.WRITTEN_HERE)
@pytest.mark.parametrize("kind", ["feed", "adapter"])
def test_what_is_written_here_is_not_typed(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "adapters_by_kind", {"x": object()})

    with pytest.raises(InvalidInputError, match=f"{name} is written here") as refused:
        add_source(kind, FEED if kind == "feed" else "x", "test/code", options={name: {}})

    assert refused.value.field == "options"


def test_a_row_that_has_them_has_no_fault() -> None:
    source = add_source("feed", FEED, "test/code")
    source.options = {name: {"password": "x" * 70_000} for name in world.WRITTEN_HERE}

    assert list(world.source_rules_faults(source)) == []
