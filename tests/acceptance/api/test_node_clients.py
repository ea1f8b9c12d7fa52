"""Clients that run in Node: AG-UI's official one. `make test-clients` installs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ravi_django.models import Session, uuid7
from tests.acceptance.api.api_support import AGENT, PAID
from tests.support.patience import BOUND_S
from tests.support.required import missing

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("payers"), pytest.mark.full]
CLIENTS = Path(__file__).resolve().parents[2] / "clients"


def talk(server: str, token: str, agent: str, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is missing: install Node 20 or newer, with npm")
    if not (CLIENTS / "node_modules").exists():
        missing("the client of AG-UI", "make test-clients installs it")
    said = {"url": f"{server}/ravi/agui/{agent}/", "token": token, "thread": str(uuid7()), "steps": steps}
    done = subprocess.run(
        [node, "agui.mjs", json.dumps(said)], cwd=CLIENTS, capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_text_streams_after_a_tool_and_the_thread_continues(server: str, key: str, worker: None) -> None:
    first, second = talk(server, key, AGENT, {"say": "6 * 7?"}, {"say": "Again?"})

    assert (first["text"], first["error"], first["interrupts"]) == ("It is 42.", None, [])
    assert first["kinds"].count("TOOL_CALL_RESULT") == 1 and first["kinds"].count("TEXT_MESSAGE_CONTENT") >= 1
    assert first["state"]["session"] == second["state"]["session"] == str(Session.objects.get().id)
    assert (second["kinds"][-1], Session.objects.get().runs.count()) == ("RUN_FINISHED", 2)


def test_an_approval_is_answered_by_the_client(server: str, key: str, worker: None) -> None:
    answers = [{"action": "approve"}, {"action": "deny"}]

    asked, answered = talk(server, key, "react/payer", {"say": "Pay."}, {"answers": answers})

    assert len(asked["interrupts"]) == 2
    assert (answered["text"], answered["interrupts"], PAID) == ("done", [], [5])


def test_an_error_is_the_clients_error(server: str, key: str, worker: None) -> None:
    (failed,) = talk(server, key, "react/broken", {"say": "Hello."})

    assert "no such model" in failed["error"] and failed["kinds"][-1] == "RUN_ERROR"
