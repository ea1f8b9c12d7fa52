"""Requests to people as runs make them, without the runs: for the tests of what shows and answers them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.test import Client
from django.utils import timezone

from ravi_django.kernel import Addressees
from ravi_django.models import HumanRequest, Run
from tests.support import world
from tests.support.runs import make_run
from tests.support.world import write_request

INBOX = "/admin/ravi/humanrequest/"
EVIL = "<script>alert('evil')</script>"


def ask(kind: str = "approval", *, to: Any = "group:finance", run: Run | None = None, **asked: Any) -> HumanRequest:
    """A pending request of a run that waits."""
    run = run or make_run()
    if kind == "approval":
        asked = {"tool": "send_invoice", "risk": "high", "arguments": {"customer": "ACME", "amount": 100}, **asked}
    count = HumanRequest.objects.filter(run=run).count()
    expires = asked.pop("expires_in", None)
    request = world.requests_new(
        run,
        f"1.{count}",
        HumanRequest.Kind(kind),
        present=timezone.now(),
        to=Addressees.of(to),
        expires_at=None if expires is None else timezone.now() + timedelta(seconds=expires),
        **{"text": "May I?", **asked},
    )
    with transaction.atomic():
        write_request(request, run)
    return request


def person(name: str, *groups: str, staff: bool = True, superuser: bool = False, may: tuple[str, ...] = ()) -> Any:
    """A user in these groups, with these permissions of the app."""
    user = get_user_model().objects.create_user(name, is_staff=staff, is_superuser=superuser)
    user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="ravi", codename__in=may))
    return user


def logged_in(user: Any, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


def page_of(request: HumanRequest) -> str:
    return f"{INBOX}{request.pk}/change/"


def decide(client: Client, request: HumanRequest, action: str, *, version: int | None = None, **typed: Any) -> Any:
    """Press a button on the page as it was at first; `typed` by the fields' names."""
    form = {"arguments": None, **typed}
    if form["arguments"] is None and request.kind == "approval" and not request.about.get("schema"):
        form["arguments"] = as_json(request.arguments)
    fields = {f"decision-{name}": value for name, value in form.items() if value is not None}
    fields["decision-version"] = str(request.version if version is None else version)
    return client.post(page_of(request), {**fields, "action": action})


def as_json(arguments: Any) -> str:
    from ravi_django.pages.form import pretty

    return pretty(arguments)


def html_of(response: Any, status: int = 200) -> str:
    assert response.status_code == status, response
    return str(response.content.decode())


def page(client: Client, address: str) -> str:
    return html_of(client.get(address))


def words(html: str) -> str:
    """The page's text."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def ours(html: str) -> str:
    """What of the page is not the admin's own."""
    return html[html.index('id="content-main"') : html.rindex("</main>")]
