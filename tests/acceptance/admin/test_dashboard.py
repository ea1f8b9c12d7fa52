"""The dashboard: who may open it, and that each figure leads to what it counts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from ravi_django.kernel import Usage
from ravi_django.models import Run, Status
from tests.support import world
from tests.support.browser import elsewhere, looks
from tests.support.inbox import ask, logged_in, person
from tests.support.many_runs import fill
from tests.support.runs import leased, make_run
from tests.support.trees import ended
from tests.support.world import Entry

PAGE = "/ravi/ui/dashboard/"


def worked(status: Status = Status.COMPLETED, **fields: Any) -> Run:
    lease = leased(make_run(**fields))
    world.append(
        lease, [Entry("llm.call", "1", "gpt", usage=Usage(input_tokens=9, cached_tokens=3), cost=0.5, elapsed_s=3)]
    )
    ended(lease, status)
    world.rollups_sweep()
    return lease.run


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def links_of(response: Any) -> set[str]:
    return {html.unescape(found) for found in re.findall(r'href="(/admin[^"]+)"', response.content.decode())}


def test_only_staff_with_the_permission_opens_it(operator: Callable[..., Any]) -> None:
    stranger = Client().get(f"{PAGE}?days=7")
    assert (stranger.status_code, stranger["Location"]) == (302, f"/accounts/login/?next={PAGE}%3Fdays%3D7")
    for client, status in ((logged_in(person("olga", staff=False)), 404), (operator("view_humanrequest"), 403)):
        response = client.get(PAGE)
        assert (response.status_code, response["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert operator("view_run").post(PAGE).status_code == 405


def test_every_figure_is_a_link_to_what_it_counts(root: Any) -> None:
    ann = get_user_model().objects.create_user("ann")
    worked(owner=ann)
    worked(Status.FAILED)
    leased(make_run())
    ask()

    response = root.get(PAGE)

    said = text_of(response)
    for words in (
        "Failed 1",
        "Finished 2",
        "50.0 % completed",
        "Cost $1.00",
        "33 % cached",
        "Open approvals 1",
        "ann 1 0 9 $0.50",
    ):
        assert words in said
    assert response.content.decode().count('href="/admin/ravi/humanrequest/"') == 3, "above, of the tile, of the table"
    counted = {}
    for address in sorted(links_of(response)):
        found = root.get(address)
        assert found.status_code == 200, address
        if "/run/" in address and "finished_at" in address:
            counted[address.partition("?")[2]] = found.context["cl"].result_count
    assert {query: count for query, count in counted.items() if "status__exact=failed" in query and count != 1} == {
        query: 0 for query in counted if "status__exact=failed" in query and f"owner__exact={ann.pk}" in query
    }
    assert any(count == 2 for count in counted.values())


def test_filters_are_in_the_address_and_nonsense_is_left_out(root: Any) -> None:
    worked()
    for query, words in (
        ("?days=7&agent=test/code", "Finished 1"),
        ("?agent=test/other", "Finished 0"),
        ("?model=gpt", "Model calls 1"),
        ("?days=x&user=%00x&model=<script>", "Model calls 0"),
    ):
        response = root.get(PAGE + query)
        assert response.status_code == 200
        assert words in text_of(response), query
        assert "<script>" not in response.content.decode()


def test_staff_sees_its_tenants_alone_and_no_request_without_the_permission(operator: Any, settings: Any) -> None:
    worked(tenant="acme")
    worked(tenant="other")
    ask()
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: "acme"}
    said = text_of(operator("view_run").get(PAGE))
    assert "Finished 1" in said
    assert "Open approvals" not in said


def test_below_a_prefix_and_without_the_admin_its_figures_are_no_links(root: Any, settings: Any) -> None:
    worked()
    settings.ROOT_URLCONF = "tests.acceptance.api.test_api_mounts"
    response = root.get("/v1/shop/ui/dashboard/")
    assert "Finished 1" in text_of(response)
    assert not links_of(response)


def test_the_admin_leads_to_it(operator: Callable[..., Any], root: Any) -> None:
    assert f'href="{PAGE}"' in root.get("/admin/").content.decode()
    assert PAGE not in operator("view_humanrequest").get("/admin/").content.decode()


@pytest.mark.full
@pytest.mark.django_db(transaction=True)
def test_it_fits_the_screen_under_a_strict_policy(live_server: Any, new_page: Any) -> None:
    def some() -> Any:
        fill(5_000)
        ask(expires_in=4000)
        world.worker_seen("web-1:4021", 18)
        world.worker_swept()
        return get_user_model().objects.create_superuser("admin")

    page = new_page(live_server.url, elsewhere(some))
    policy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'"
    page.route(f"**{PAGE}*", lambda route: _with_policy(route, policy))
    page.goto(f"{PAGE}?days=30")
    page.locator("summary").first.click()

    for _, width in looks(page, 1360, 390):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".as-table tbody tr").first.is_visible()
    page.select_option("[name=days]", "7")
    page.click("text=Apply")
    assert "days=7" in page.url
    assert page.errors + page.console == []


def _with_policy(route: Any, policy: str) -> None:
    response = route.fetch()
    route.fulfill(response=response, headers={**response.headers, "content-security-policy": policy})
