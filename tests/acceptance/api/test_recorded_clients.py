"""Requests that libraries sent with their own defaults, recorded once at this site (tests/corpus/clients) and played.

A client keeps ids of earlier answers. `ids` are those of the recorded answer, in order: the played answer has others.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ravi_django.models import Run, Session
from tests.acceptance.api.api_support import RUNSERVER

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers")]
CLIENTS = sorted((Path(__file__).parents[2] / "corpus" / "clients").glob("*.json"))
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.mark.parametrize("file", CLIENTS, ids=lambda file: file.stem)
def test_a_library_gets_what_it_got_when_it_was_recorded(client: Any, worker: None, file: Path) -> None:
    recorded = json.loads(file.read_text())
    new: dict[str, str] = {}  # by the recorded id

    for request in recorded["requests"]:
        sent = json.loads(ID.sub(lambda id: new.get(id[0], id[0]), json.dumps(request)))
        call = client.get if request["method"] == "GET" else client.post
        answer = call(f"/ravi/v1/{sent['path']}", sent.get("body"), format="json", **RUNSERVER)
        text = answer.getvalue().decode()
        assert answer.status_code == request["status"], (request, text)
        assert answer.get("x-ravi-ignored") == request.get("x-ravi-ignored")
        new |= dict(zip(request["ids"], dict.fromkeys(ID.findall(text)), strict=True))

    assert (Session.objects.count(), Run.objects.count()) == (recorded["conversations"], recorded["runs"])
