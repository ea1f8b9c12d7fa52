"""A site that mounts an admin site of its own in place of Django's."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.core.checks import run_checks
from django.urls import clear_url_caches, path

from ravi_django.admin import register_on
from tests.support.inbox import ask, logged_in, person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ops(settings: Any, monkeypatch: pytest.MonkeyPatch) -> AdminSite:
    site = AdminSite("ops")
    monkeypatch.setitem(sys.modules, "ops_urls", urls := ModuleType("ops_urls"))
    urls.urlpatterns = [path("ops/", lambda request: None)]
    settings.ROOT_URLCONF = "ops_urls"

    def mount() -> None:
        urls.urlpatterns = [path("ops/", site.urls)]
        clear_url_caches()

    site.mount = mount
    return site


def warned() -> list[str]:
    return [found.id for found in run_checks(tags=["ravi"]) if found.id == "ravi.W031"]


def test_its_pages_have_our_models_once_they_are_registered(ops: Any) -> None:
    register_on(ops)
    register_on(ops)
    ops.mount()
    client = logged_in(person("root", superuser=True))
    address = f"/ops/ravi/humanrequest/{ask().pk}/change/"

    index = client.get("/ops/ravi/").content.decode()
    lists = set(re.findall(r'href="(/ops/ravi/\w+/)"', index))
    pages = {place: client.get(place) for place in (*lists, address)}

    assert len(lists) == 13
    assert {page.status_code for page in pages.values()} == {200}
    assert not [place for place, page in pages.items() if b'"/admin/' in page.content]
    assert warned() == []


def test_a_list_links_to_an_inner_one_for_who_may_view_that() -> None:
    for may, shown in [(("view_session",), False), (("view_session", "view_boardtask"), True)]:
        page = logged_in(person(f"u{len(may)}", may=may)).get("/admin/ravi/session/")
        assert (b'href="/admin/ravi/boardtask/"' in page.content) == shown


def test_a_check_warns_of_an_admin_without_our_models(ops: Any) -> None:
    assert warned() == []  # no admin is mounted: none is missed

    ops.mount()

    assert warned() == ["ravi.W031"]


def test_the_stock_site_is_fine() -> None:
    assert warned() == []
