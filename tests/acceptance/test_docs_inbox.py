"""What docs/howto/inbox.md and docs/reference/requests.md show of REST and the commands does what it says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from rest_framework.test import APIClient

from ravi_django.models import HumanRequest, Run
from ravi_django.services.request_shapes import RequestDetailSerializer
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.docs import Page
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db
REST, PAGE = Page("requests").text, Page("inbox").text
CALLS = re.findall(
    r"^(POST) (\S+)\n(\{.*\})$", "\n".join(re.findall(r"```http\n(.*?)```", REST, re.DOTALL)), re.MULTILINE
)
COMMANDS = re.findall(r"^python manage\.py (ravi_(?:requests|answer)\b.*)$", PAGE, re.MULTILINE)

SCHEMA = {
    "type": "object",
    "properties": {"customer": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["customer", "amount"],
}
MAKE: dict[str, Callable[[Run], HumanRequest]] = {
    "QUESTION": lambda run: asked_by(run, to="staff"),
    "SEVERAL": lambda run: asked_by(run, Kind.INPUT, "staff", details={"questions": {"colour": "?", "coats": "?"}}),
    "APPROVAL": lambda run: approval_of(run, details={"schema": SCHEMA}),
    "UNCERTAIN": lambda run: asked_by(run, Kind.UNCERTAIN, tool="send_invoice"),
}


@pytest.fixture
def ada(django_user_model: Any) -> Any:
    director = django_user_model.objects.create_user("dora", is_staff=True)
    director.groups.add(Group.objects.create(name="directors"))
    return django_user_model.objects.create_user("ada", is_staff=True)


def test_the_page_has_examples() -> None:
    assert len(CALLS) == REST.count("\nPOST /ravi/requests/") >= 10
    assert len(COMMANDS) >= 10
    assert {json.loads(body).get("action", "reassign") for _, _, body in CALLS} == {*world.EVERY_ACTION, "reassign"} - {
        "cancel"
    }


@pytest.mark.parametrize(("path", "body"), [(path, body) for _, path, body in CALLS])
def test_every_call_of_the_page_is_taken(ada: Any, path: str, body: str) -> None:
    name = path.split("/")[3]
    request = MAKE[name](make_run())
    client = APIClient()
    client.force_authenticate(ada)

    response = client.post(path.replace(name, str(request.id)), json.loads(body), format="json")

    assert response.status_code == 200, response.content
    assert response.json()["version"] == 2


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_taken(ada: Any, line: str) -> None:
    command, *args = shlex.split(line)
    request = MAKE[args[0] if command == "ravi_answer" else "APPROVAL"](make_run())
    out = StringIO()

    call_command(command, *[str(request.id) if arg in MAKE else arg for arg in args], stdout=out)

    request.refresh_from_db()
    assert request.status == ("answered" if command == "ravi_answer" else "pending")
    assert str(request.id) in out.getvalue() or command == "ravi_answer"


def test_every_field_is_described() -> None:
    described = REST.partition("A request has")[2].partition("`run.waiting_on`")[0]

    assert [name for name in RequestDetailSerializer().fields if not re.search(rf"[` ]{name}[`, ]", described)] == []
