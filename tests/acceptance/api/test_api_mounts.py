"""The app mounted below a prefix of the site that has arguments of its own."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core import mail as sent
from django.core.checks import run_checks
from django.test import Client, override_settings
from django.urls import include, path
from rest_framework.test import APIClient

import ravi_django
from ravi_django.models import Source
from tests.acceptance.api.api_support import AGENT
from tests.acceptance.api.test_api_access import addresses
from tests.support import world
from tests.support.asked import asked_by
from tests.support.world import submit

# `namespace` is a name in our own patterns too.
urlpatterns = [path("<str:version>/<slug:namespace>/", include("ravi_django.urls"), {"site": "shop"})]

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
PREFIX = "/v1/shop/"


@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_every_address_answers_as_below_a_plain_prefix(client: APIClient, user: Any, agent: str, method: str) -> None:
    def codes(prefix: str) -> dict[str, int]:
        run = submit(AGENT, "hi", user=user)
        follow, _ = ravi_django.follow(AGENT, "news/sport", user=user)
        rows = {"session": run.session_id, "request": asked_by(run, to="owner").id, "follow": follow.pk}
        found = addresses(run.id, **rows)
        call = getattr(client, method)
        return {name: call(place.replace("/ravi/", prefix, 1)).status_code for name, place in found.items()}

    with override_settings(ROOT_URLCONF="project.urls"):
        expected = codes("/ravi/")

    assert codes(PREFIX) == expected
    assert len(set(expected.values())) > 1


def test_links_lead_to_the_same_prefix(client: APIClient, user: Any, agent: str) -> None:
    first, second = submit(agent, "1", user=user), submit(agent, "2", user=user)

    page = client.get(f"{PREFIX}runs/?limit=1").json()

    assert page["next"].startswith(f"http://testserver{PREFIX}runs/?")
    assert [page["results"][0]["id"], client.get(page["next"]).json()["results"][0]["id"]] == [
        str(second.id),
        str(first.id),
    ]


def test_links_from_outside_of_a_request_have_the_arguments_of_the_settings(settings: Any, user: Any) -> None:
    def ids() -> list[str]:
        return [found.id or "" for found in run_checks(tags=["ravi"])]

    settings.RAVI = {"REQUEST_EMAIL": "https://example.com"}
    assert "ravi.W006" in ids()
    settings.RAVI = {**settings.RAVI, "URL_KWARGS": {"version": "v1", "namespace": "shop"}}
    assert "ravi.W006" not in ids()
    get_user_model().objects.filter(pk=user.pk).update(email="ann@example.com")
    source = Source.objects.create(name="alerts", kind="webhook", agent=AGENT, owner=user)

    world.mail_send(asked_by(submit(AGENT, "hi", user=user), to="owner").id)

    link = next(word for word in str(sent.outbox[0].body).split() if word.startswith(f"https://example.com{PREFIX}"))
    browser = Client()
    browser.force_login(user)
    shown = browser.get(link.removeprefix("https://example.com"))
    assert (shown.status_code, b"Which colour?" in shown.content) == (200, True)
    assert world.path_of(source) == f"{PREFIX}sources/{source.id}/hook/"
