"""`GET sessions/{id}/board/`: the tasks of a conversation, for its owner."""

from __future__ import annotations

import pytest

from ravi_django.models import Run, Session
from tests.acceptance.api.api_support import AGENT
from tests.support import world

pytestmark = pytest.mark.django_db


@pytest.fixture
def place(run: Run) -> world.BoardKey:
    return world.BoardKey(run.session_id, AGENT, "Helper", "", run.id)


def test_the_tasks_of_all_agents_newest_first(client, run, place, django_assert_num_queries) -> None:
    first = world.board_add(place, "Find <b>it</b>", "There.")
    second = world.board_add(world.BoardKey(place.session_id, "react/other", "Other", AGENT, run.id), "Look")
    world.board_update(place, 1, status="doing")

    with django_assert_num_queries(3):
        response = client.get(f"/ravi/sessions/{run.session_id}/board/")

    body = response.json()
    assert (response.status_code, body["next"], body["previous"]) == (200, None, None)
    assert [task["id"] for task in body["results"]] == [str(second.id), str(first.id)]
    first.refresh_from_db()
    assert body["results"][1] == world.board_as_json(first)
    shown = [body["results"][1][name] for name in ("session", "number", "title", "detail", "status")]
    assert shown == [str(run.session_id), 1, "Find <b>it</b>", "There.", "doing"]
    assert body["results"][1]["created_at"].endswith("Z")
    assert (body["results"][0]["agent"], body["results"][0]["parent_agent"]) == ("react/other", AGENT)


def test_a_childs_session_shows_the_board_that_it_belongs_to(client, user, run, place) -> None:
    world.board_add(place, "On top")
    middle = world.create_session(Session(owner=user, parent_session=run.session))
    leaf = world.create_session(Session(owner=user, parent_session=middle))
    other = world.create_session(Session(owner=user))

    (task,) = client.get(f"/ravi/sessions/{leaf.id}/board/").json()["results"]

    assert task["title"] == "On top"
    assert client.get(f"/ravi/sessions/{other.id}/board/").json()["results"] == []


def test_a_session_of_ones_own_below_somebody_elses_shows_nothing(strange_client, stranger, run, place) -> None:
    world.board_add(place, "Private")
    own = world.create_session(Session(owner=stranger, parent_session=run.session))

    assert strange_client.get(f"/ravi/sessions/{own.id}/board/").status_code == 404
