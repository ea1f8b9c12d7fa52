"""The messages of a session show no tool call without a result, whatever became of the run."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from ravi_django.agents.memory.transcript import make_summary
from ravi_django.kernel import ChatMessage, Role
from ravi_django.models import Run, Session, Status, Turn
from tests.support.conversations import assistant, calls, results, user
from tests.support.world import history_append

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("user")


def talk(user_row: Any, *turns: ChatMessage, status: str = Status.FAILED, agent: str = "react/a") -> Session:
    session = Session.objects.create(owner=user_row)
    run = Run.objects.create(agent=agent, session=session, owner=user_row, status=status)
    history_append(agent, session.id, turns, str(run.id), 0)  # type: ignore[arg-type]
    return session


def read(client: APIClient, session: Session, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/ravi/sessions/{session.id}/messages/{query}").json()["results"]
    return found


def ids_of(rows: list[dict[str, Any]], kind: str) -> list[str]:
    return [block["call_id"] for row in rows for block in row["content"] if block["type"] == kind]


def test_a_call_without_a_result_is_shown_with_an_interrupted_one(client: APIClient, owner: Any) -> None:
    session = talk(owner, user(), calls("a", "b"), results("a"), user("and?"), calls("c"))

    rows = read(client, session)

    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool", "user", "assistant", "tool"]
    assert sorted(ids_of(rows, "tool_result")) == ids_of(rows, "tool_use") == ["a", "b", "c"]
    assert rows[2]["content"][0]["content"][0]["text"].startswith("interrupted")
    assert len({row["id"] for row in rows}) == 7
    assert Turn.objects.filter(session=session).count() == 5


def test_a_call_of_a_run_that_goes_on_is_under_way(client: APIClient, owner: Any) -> None:
    session = talk(owner, user(), calls("a"), status=Status.RUNNING)

    (result,) = read(client, session)[2]["content"]

    assert "under way" in result["content"][0]["text"]


def test_a_result_on_the_next_page_is_no_missing_one(client: APIClient, owner: Any) -> None:
    session = talk(owner, user(), calls("a", "b"), results("a"), results("b"), assistant())

    first = client.get(f"/ravi/sessions/{session.id}/messages/?limit=2").json()
    second = client.get(first["next"]).json()

    assert [row["role"] for row in first["results"]] == ["user", "assistant"]
    assert [row["role"] for row in second["results"]] == ["tool", "tool"]
    assert [row["role"] for row in client.get(second["previous"]).json()["results"]] == ["user", "assistant"]


def test_pages_with_an_interrupted_call_lose_and_double_nothing(client: APIClient, owner: Any) -> None:
    session = talk(owner, user(), calls("a"), user("2"), calls("b"), user("3"))
    page, roles = f"/ravi/sessions/{session.id}/messages/?limit=2", []

    while page:
        found = client.get(page).json()
        roles += [row["role"] for row in found["results"]]
        page = found["next"]

    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool", "user"]


def test_agents_of_one_session_are_told_apart(client: APIClient, owner: Any) -> None:
    session = talk(owner, user(), calls("a"))
    history_append("react/b", session.id, [user("to b"), calls("a")], "", None)  # type: ignore[arg-type]
    history_append("react/a", session.id, [results("a")], "", None)  # type: ignore[arg-type]

    rows = read(client, session)

    assert [row["role"] for row in rows] == ["user", "assistant", "user", "assistant", "tool", "tool"]
    assert rows[4]["content"][0]["is_error"] is True
    assert rows[5]["content"][0]["is_error"] is False


def test_a_summary_was_not_said(client: APIClient, owner: Any) -> None:
    session = talk(owner, user(), make_summary("s", 0), assistant())

    assert [row["role"] for row in read(client, session)] == [Role.USER, Role.ASSISTANT]
