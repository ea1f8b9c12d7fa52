"""Who gets which page of the admin: every page, action and method of the app's models has a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.db import transaction
from django.test import Client, RequestFactory

from tests.acceptance.access.world import PEOPLE, World, make, misfits

pytestmark = pytest.mark.django_db

WITH_VIEWER = (*PEOPLE, "viewer")
TABLE = Path(__file__).with_name("admin_matrix.txt")
INLINE = re.compile(rb"<script(?![^>]*(?: src=|json))|<style|<[^>]+\s(?:style|on\w+)=")  # what a strict policy refuses


def pages(world: World) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Row of the table, method, address, body."""
    for model, found in admin.site._registry.items():
        if model._meta.app_label != "ravi":
            continue
        noun = model._meta.model_name
        pk = world.rows[noun].pk
        for pattern in found.get_urls():
            name = str(pattern.name).removeprefix("ravi_").removeprefix(f"{noun}_")
            if pattern.name is None or name == "None":  # the old address of a change page: a redirect
                continue
            parts = {"path:object_id": pk, "int:object_id": pk, "uuid:id": pk, "int:number": 1}
            route = str(pattern.pattern)
            for part, value in parts.items():
                route = route.replace(f"<{part}>", str(value))
            assert "<" not in route, f"{route}: the test has no value for it"
            for method in ("GET", "POST"):
                yield f"{method} {noun} {name}", method, f"/admin/ravi/{noun}/{route}", {}
        yield f"GET {noun} search", "GET", f"/admin/ravi/{noun}/?q={world.marker[:-2]}", {}
        for action in actions(found, world):
            body = {"action": action, "_selected_action": [str(pk)]}
            yield f"POST {noun} action {action}", "POST", f"/admin/ravi/{noun}/", body


def actions(found: ModelAdmin, world: World) -> list[str]:
    request = RequestFactory().get("/")
    request.user = world.people["root"]
    return list(found.get_actions(request))


def of_tenants(world: World) -> list[Any]:
    """The rows as they are, but for those of the whole site."""
    rows = [row for noun, row in world.rows.items() if noun not in ("agent", "workerprocess")]
    return [type(row)._base_manager.filter(pk=row.pk).values().first() for row in rows]


def outcome(response: Any) -> str:
    """A status; `login` or `gone` for Django's redirects of those who are no staff, and of an unknown id."""
    if response.status_code == 302:
        target = response.url.partition("?")[0]
        return {"/admin/login/": "login", "/admin/": "gone"}.get(target, "302")
    return str(response.status_code)


@pytest.mark.timeout(400)  # thousands of requests
@pytest.mark.full
def test_each_page_answers_each_person_as_the_table_says(settings: Any) -> None:
    """Also: no page has a button that its reader may not press."""
    settings.RAVI = {**settings.RAVI, "TENANT_OF": "tests.acceptance.access.world.tenant_of"}
    world = make()
    seen: dict[str, list[str]] = {}
    wrongs, inline, before = [], set(), of_tenants(world)
    for person in WITH_VIEWER:
        client = Client(raise_request_exception=False)
        if world.people[person] is not None:
            client.force_login(world.people[person])
        shown, buttons = b"", {}
        for row, method, address, body in pages(world):
            with transaction.atomic():
                response = client.get(address) if method == "GET" else client.post(address, body)
                result = outcome(response)
                if re.fullmatch(r"POST \w+ change", row) and result == "gone":
                    result = "403"  # Django 6.1 looks for the row before the right to change it
                seen.setdefault(row, []).append(result)
                if method == "POST" and person in ("foreign", "viewer") and of_tenants(world) != before:
                    wrongs.append((person, row))
                if person == "foreign" and world.marker.encode() in response.content:
                    wrongs.append((person, row))
                inline |= {(row, found) for found in INLINE.findall(response.content)}
                if response.status_code == 405:
                    buttons[row.replace("GET", "POST")] = address.encode()
                shown += response.content if method == "GET" else b""
                transaction.set_rollback(True)
        wrongs += [(person, row) for row, address in buttons.items() if seen[row][-1] == "403" and address in shown]

    assert (wrongs, inline) == ([], set())
    wrong = misfits(TABLE, seen, WITH_VIEWER)
    assert not wrong, wrong


def test_nothing_is_posted_without_a_token() -> None:
    world = make()
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(world.people["root"])

    for row, method, address, body in pages(world):
        if method == "POST":
            assert strict.post(address, body).status_code == 403, row
