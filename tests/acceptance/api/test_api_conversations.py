"""Agents, sessions, messages and the journal: what a finished run leaves to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db.models.signals import post_init
from pydantic_core import to_json
from rest_framework.test import APIClient

from ravi_django.kernel import AgentId, SessionNotFoundError
from ravi_django.models import TERMINAL, Agent, Blob, HumanRequest, JournalEntry, Run, Session, Status, Turn
from tests.acceptance.api.api_support import AGENT, client_of, drive, error_of, make_agent
from tests.support import world
from tests.support.asked import approval_of
from tests.support.runs import (
    BOUND_S,
    in_background,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    uncommitted,
    until,
)
from tests.support.world import BLOB_KEY, make_blob, submit

# --------------------------------------------------------------------------------------------------- agents


@pytest.mark.django_db
def test_an_agent_is_shown_without_its_secrets(client: APIClient, agent: str) -> None:
    response = client.get(f"/ravi/agents/{agent}/")

    assert response.status_code == 200
    found = response.json()
    assert (found["agent"], found["type"], found["key"]) == (agent, "react", "api-helper")
    assert (found["class"], found["model"], found["name"]) == ("ReActAgent", "scripted", "api-helper")
    (tool,) = found["tools"]
    assert set(tool) == {"name", "description", "parameters", "risk", "effect"}
    assert (tool["name"], tool["risk"], tool["effect"]) == ("calculator", "safe", "idempotent")
    assert b"sk-secret" not in response.content


@pytest.mark.django_db
def test_a_row_in_the_admin_names_and_disables_an_agent(client: APIClient, agent: str) -> None:
    row, _ = Agent.objects.update_or_create(address=agent, defaults={"name": "Helper", "description": "Helps."})
    found = client.get(f"/ravi/agents/{agent}/").json()

    Agent.objects.filter(id=row.id).update(enabled=False)
    gone = client.get(f"/ravi/agents/{agent}/")

    assert (found["name"], found["description"]) == ("Helper", "Helps.")
    assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found")
    assert agent not in [one["agent"] for one in client.get("/ravi/agents/").json()["results"]]


@pytest.mark.django_db
def test_agents_are_listed_in_pages(client: APIClient, agent: str, django_assert_num_queries: Any) -> None:
    for key in ("a", "b", "c"):
        world.register(make_agent(key))
    with django_assert_num_queries(3):  # the rows, and the user's permissions
        everything = client.get("/ravi/agents/").json()
    seen, page, pages = [], "/ravi/agents/?limit=2", []
    while page:
        pages.append(client.get(page).json())
        seen += [one["agent"] for one in pages[-1]["results"]]
        page = pages[-1]["next"]
    back = client.get(pages[-1]["previous"]).json()

    assert everything["next"] is None and everything["previous"] is None
    assert seen == [one["agent"] for one in everything["results"]] == sorted(seen)
    assert {"react/a", "react/b", "react/c", agent} <= set(seen)
    assert back["results"] == pages[-2]["results"]


@pytest.mark.django_db
def test_an_agent_in_a_namespace_has_an_address_too(client: APIClient) -> None:
    agent = make_agent()
    agent.id = AgentId("react", "x", "lab")
    world.register(agent)
    assert client.get("/ravi/agents/lab/react/x/").json()["agent"] == "lab/react/x"


# ------------------------------------------------------------------------------------------------- sessions


@pytest.mark.django_db
def test_a_session_is_begun_and_read(client: APIClient, user: Any, agent: str) -> None:
    response = client.post("/ravi/sessions/", {"title": "Sums", "agent": agent}, format="json")

    assert response.status_code == 201
    made = response.json()
    row = Session.objects.get()
    assert (made["id"], made["title"], made["agent"], made["parent"]) == (str(row.id), "Sums", agent, None)
    assert row.owner == user
    assert datetime.fromisoformat(made["created_at"]) == row.created_at and made["created_at"].endswith("Z")
    assert client.get(f"/ravi/sessions/{row.id}/").json() == {**made, "branches": []}
    assert client.get("/ravi/sessions/").json()["results"] == [made]
    empty = client.post("/ravi/sessions/")
    assert (empty.status_code, empty.json()["title"], empty.json()["agent"]) == (201, "", None)


@pytest.mark.django_db
def test_a_bad_session_is_neither_made_nor_renamed_nor_spoken_in(client, user, agent, written) -> None:
    address = f"/ravi/sessions/{world.create_session(Session(owner=user, agent=agent)).id}/"
    silent = f"/ravi/sessions/{world.create_session(Session(owner=user)).id}/"
    before = written()

    for call, place, body, status, field in (
        *((client.post, "/ravi/sessions/", {"title": bad}, 400, "title") for bad in (5, "x" * 201, None)),
        (client.post, "/ravi/sessions/", {"agent": "react/nobody"}, 404, "agent"),
        (client.post, "/ravi/sessions/", {"agent": "nonsense"}, 400, "agent"),
        (client.post, "/ravi/sessions/", {"owner": 1}, 400, "owner"),
        (client.patch, address, {"title": "x" * 201}, 400, "title"),
        (client.patch, address, {}, 400, "title"),
        (client.patch, address, {"title": "Sums", "agent": "a/b"}, 400, "agent"),
        (client.post, address + "messages/", {}, 400, "text"),
        *((client.post, address + "messages/", {"text": bad}, 400, "text") for bad in (" ", 5, ["hi"], None, "a\0b")),
        (client.post, address + "messages/", {"text": "x" * (256 * 1024)}, 413, "text"),
        (client.post, address + "messages/", {"text": "hi", "agent": "react/nobody"}, 404, "agent"),
        (client.post, address + "messages/", {"text": "hi", "agent": "nonsense"}, 400, "agent"),
        (client.post, address + "messages/", {"text": "hi", "input": "hi"}, 400, "input"),
        (client.post, silent + "messages/", {"text": "hi"}, 400, "agent"),
    ):
        response = call(place, body, format="json")
        assert (response.status_code, error_of(response)["field"]) == (status, field), str(body)[:80]
    assert written() == before
    renamed = client.patch(address, {"title": "Sums"}, format="json")
    assert (renamed.status_code, renamed.json()["title"]) == (200, "Sums")
    assert client.get(address).json() == {**renamed.json(), "branches": []}


@pytest.mark.django_db
def test_conversations_between_agents_are_not_listed(client, user, django_assert_num_queries) -> None:
    mine = [world.create_session(Session(owner=user)) for _ in range(3)]
    child = world.create_session(Session(owner=user, parent_session=mine[0]))

    with django_assert_num_queries(1):
        listed = client.get("/ravi/sessions/").json()["results"]

    assert [one["id"] for one in listed] == [str(one.id) for one in mine[::-1]]
    assert client.get(f"/ravi/sessions/{child.id}/").json()["parent"] == str(mine[0].id)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("whose", ["owner", "root"])
def test_a_deleted_session_takes_all_that_it_had(client: APIClient, root: Any, agent: str, whose: str) -> None:
    run = client.post("/ravi/runs/", {"agent": agent, "input": "6 * 7?"}, format="json").json()
    drive(run["id"])
    child = world.create_session(Session(owner=root, parent_session_id=run["session"]))
    deleter, address = client if whose == "owner" else client_of(root), f"/ravi/sessions/{run['session']}/"

    assert deleter.delete(address).status_code == 204
    assert Run.objects.get(id=run["id"]).session_id == UUID(run["session"])  # the sweep's, however many there are

    for one in (client, client_of(root)):
        assert [one.get(f"/ravi/{path}").status_code for path in (address[6:], f"runs/{run['id']}/")] == [404, 404]
        assert [one.get(f"/ravi/{path}/").json()["results"] for path in ("runs", "sessions")] == [[], []]
        assert error_of(one.post(f"{address}messages/", {"text": "x", "agent": agent}, format="json"))
        assert one.post(f"/ravi/runs/{run['id']}/retry/").status_code == 404
    assert deleter.delete(address).status_code == 404
    world.erasing_sweep()
    for model in (Session, Run, Turn, JournalEntry):
        assert not model.objects.exists(), model
    assert not Session.objects.filter(id=child.id).exists()


@pytest.mark.django_db
def test_a_session_with_a_run_that_has_not_ended_stays(client: APIClient, user: Any) -> None:
    for below in (False, True):
        session = world.create_session(Session(owner=user))
        place = world.create_session(Session(owner=user, parent_session=session)) if below else session
        run = make_run(session=place, owner=user)
        for status in (one for one in Status if one not in TERMINAL):
            Run.objects.filter(id=run.id).update(status=status)
            response = client.delete(f"/ravi/sessions/{session.id}/")
            assert (response.status_code, error_of(response)["code"]) == (409, "conflict"), (status, below)
        Run.objects.update(status=Status.CANCELLED)
        assert client.delete(f"/ravi/sessions/{session.id}/").status_code == 204, below


def test_the_session_of_a_child_run_goes_with_its_parents_alone(client: APIClient, user: Any) -> None:
    session = world.create_session(Session(owner=user))
    run = make_run(session=session, owner=user, status=Status.SUSPENDED)
    place = world.create_session(Session(owner=user, parent_session=session))
    make_run(session=place, owner=user, parent=run, root=run, status=Status.COMPLETED)

    response = client.delete(f"/ravi/sessions/{place.id}/")

    assert response.status_code == 409 and str(session.id) in error_of(response)["message"]
    assert Run.objects.count() == 2


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_no_run_comes_into_a_session_that_is_being_deleted(user: Any, agent: str) -> None:
    session = world.create_session(Session(owner=user))

    with uncommitted(lambda: world.begin_session(session.id)):
        submitting = in_background(lambda: submit(agent, "hi", session=session, user=user))
        until(somebody_waits_for_a_lock)

    assert isinstance(submitting.exception(BOUND_S), SessionNotFoundError)
    assert not Run.objects.exists()


# ------------------------------------------------------------------------------------------------- messages


@pytest.mark.django_db
def test_a_message_goes_to_the_agent_named_and_then_to_the_last(client: APIClient, agent: str) -> None:
    session = client.post("/ravi/sessions/", {}, format="json").json()["id"]
    say = f"/ravi/sessions/{session}/messages/"

    first = client.post(say, {"agent": agent, "text": "one"}, format="json")
    second = client.post(say, {"text": "two"}, format="json")

    assert (first.status_code, second.status_code) == (201, 201)
    assert (first.json()["agent"], second.json()["agent"]) == (agent, agent)
    assert first.json()["session"] == second.json()["session"] == session
    assert (first.json()["status"], second.json()["status"]) == ("pending", "queued")


@pytest.mark.django_db(transaction=True)
def test_a_message_says_what_becomes_of_it_while_the_agent_is_at_work(client: APIClient, agent: str) -> None:
    first = client.post("/ravi/runs/", {"agent": agent, "input": "one"}, format="json").json()
    say = f"/ravi/sessions/{first['session']}/messages/"
    bodies = [("steer", 200), ("reject", 409), ("interrupt", 201), ("later", 400)]
    answers = [client.post(say, {"text": "two", "on_busy": how}, format="json") for how, _ in bodies]

    assert [answer.status_code for answer in answers] == [status for _, status in bodies]
    assert answers[0].json()["id"] == first["id"]
    assert [error_of(answers[at]).get(name) for at, name in ((1, "code"), (3, "field"))] == ["thread_busy", "on_busy"]
    assert client.get(f"/ravi/runs/{first['id']}/").json()["status"] == "cancelled"
    assert client.get(f"/ravi/runs/{answers[2].json()['id']}/").json()["status"] == "pending"


# ------------------------------------------------------------------------------------------- after a real run


@pytest.mark.django_db(transaction=True)
def test_a_finished_run_is_read_in_all_its_parts(client: APIClient, agent: str, django_assert_num_queries: Any) -> None:
    run = client.post("/ravi/runs/", {"agent": agent, "input": "6 * 7?"}, format="json").json()
    drive(run["id"])

    done = client.get(f"/ravi/runs/{run['id']}/").json()
    assert (done["status"], done["output"], done["error"], done["attempts"]) == ("completed", "It is 42.", None, 1)
    assert "output_schema" not in done
    assert done["usage"] == {
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 6,
        "cost": 0.5,
        "estimated": False,
    }
    times = [datetime.fromisoformat(done[name]) for name in ("created_at", "started_at", "finished_at")]
    assert times == sorted(times)

    with django_assert_num_queries(3):  # the run, the lengths, the rows
        journal = client.get(f"/ravi/runs/{run['id']}/journal/").json()["results"]
    assert [entry["seq"] for entry in journal] == list(range(1, len(journal) + 1))
    assert {"llm.call", "tool.call", "run.completed"} <= {entry["kind"] for entry in journal}
    call = next(entry for entry in journal if entry["kind"] == "tool.call")
    assert call["name"] == "calculator"
    assert call["request"]["arguments"] == {"expression": "6 * 7"}
    assert call["usage"] is None and call["error"] is None and call["generation"] == 0
    model = next(entry for entry in journal if entry["kind"] == "llm.call")
    assert (model["usage"]["input_tokens"], model["usage"]["output_tokens"], model["usage"]["cost"]) == (5, 3, 0.25)
    assert set(model) == {
        *("seq", "generation", "path", "kind", "name", "request", "result", "error", "usage"),
        *("started_at", "finished_at", "attempt", "phase"),
    }
    assert model["finished_at"].endswith("Z")

    with django_assert_num_queries(3):
        messages = client.get(f"/ravi/sessions/{run['session']}/messages/").json()["results"]
    assert [row["role"] for row in messages] == ["user", "assistant", "tool", "assistant"]
    assert all(set(row) == {"id", "role", "content", "run", "interrupted", "created_at"} for row in messages)
    assert messages[0]["content"] == [{"type": "text", "text": "6 * 7?"}]
    assert messages[-1]["content"][0]["text"] == "It is 42."
    assert {row["run"] for row in messages} == {run["id"]}
    assert len({UUID(row["id"]) for row in messages}) == 4

    pages = client.get(f"/ravi/sessions/{run['session']}/messages/?limit=3").json()
    assert pages["results"] == messages[:3]
    assert client.get(pages["next"]).json()["results"] == messages[3:]
    last = client.get(f"/ravi/sessions/{run['session']}/messages/?limit=3&cursor=end").json()
    assert (last["results"], last["next"]) == (messages[1:], None)
    assert client.get(last["previous"]).json()["results"] == messages[:1]


@pytest.mark.django_db
def test_a_value_too_big_for_its_row_is_shown_whole(client, user, agent, django_assert_num_queries) -> None:
    run = submit(agent, "hi", user=user)
    blob = make_blob(b'{"text": "' + b"x" * 100_000 + b'"}', compress=True)
    blob.save()
    at = Run.objects.get(id=run.id).created_at
    for seq in range(1, 4):
        JournalEntry.objects.create(
            run=run, seq=seq, path=f"p{seq}", kind="tool.call", result={"$blob": blob.id, "size": blob.size},
            started_at=at, finished_at=at,
        )  # fmt: skip

    with django_assert_num_queries(5):  # and the sizes of the bodies, and the bodies
        entries = client.get(f"/ravi/runs/{run.id}/journal/").json()["results"]

    assert [len(entry["result"]["text"]) for entry in entries] == [100_000] * 3


def test_a_page_has_so_many_bytes_and_its_links_lead_to_the_rest(client, user, monkeypatch) -> None:
    monkeypatch.setattr("ravi_django.api.filters.MAX_BYTES", 5_000)
    session = world.create_session(Session(owner=user))
    for place in range(7):
        content = [{"type": "text", "text": f"{place}" * 2_000}]
        Turn.objects.create(session=session, agent="react/x", role="user", content=content, position=place)
    address = f"/ravi/sessions/{session.id}/messages/?limit=200"

    pages = []
    while address:
        page = client.get(address).json()
        pages.append([row["content"][0]["text"][0] for row in page["results"]])
        address = page["next"]
    assert pages == [["0", "1"], ["2", "3"], ["4", "5"], ["6"]]
    back = client.get(page["previous"]).json()
    assert [row["content"][0]["text"][0] for row in back["results"]] == ["4", "5"]
    first = client.get(client.get(back["previous"]).json()["previous"]).json()
    assert ([row["content"][0]["text"][0] for row in first["results"]], first["previous"]) == (["0", "1"], None)


def test_a_list_has_the_beginning_of_an_output(client: APIClient, agent: str) -> None:
    run = client.post("/ravi/runs/", {"agent": agent, "input": "hi"}, format="json").json()
    Run.objects.update(output="x" * 5_000)

    assert len(client.get("/ravi/runs/").json()["results"][0]["output"]) == 1_000
    assert len(client.get(f"/ravi/runs/{run['id']}/").json()["output"]) == 5_000


@contextmanager
def loaded(*models: Any) -> Iterator[list[Any]]:
    """The rows of these models that are made of what the database sends."""
    found: list[Any] = []

    def note(sender: Any, instance: Any, **more: Any) -> None:
        found.append(instance)

    for model in models:
        post_init.connect(note, sender=model)
    yield found
    for model in models:
        post_init.disconnect(note, sender=model)


def test_no_more_rows_are_read_than_the_bytes_of_a_page(client, user, agent, monkeypatch) -> None:
    monkeypatch.setattr("ravi_django.api.filters.MAX_BYTES", 6_000)
    run = submit(agent, "hi", user=user)
    turn = {"session_id": run.session_id, "agent": "react/x", "role": "user"}
    entry = {"run": run, "kind": "log", "started_at": run.created_at, "finished_at": run.created_at}
    for place in range(9):
        text = f"{place}" * 2_000
        Turn.objects.create(**turn, content=[{"type": "text", "text": text}], position=place)
        JournalEntry.objects.create(**entry, seq=place + 1, path=f"p{place}", result={"text": text})
        approval_of(run, details={"context": text})

    for path in (f"sessions/{run.session_id}/messages/", f"runs/{run.id}/journal/", "requests/"):
        with loaded(Turn, JournalEntry, HumanRequest) as rows:
            shown = client.get(f"/ravi/{path}?limit=200").json()["results"]
        # One more says whether there is a next page; of requests, those shown are read again for the rights to them.
        assert (len(shown), len(rows)) == (2, 5 if path == "requests/" else 3), path


def test_no_more_bodies_are_read_than_a_page_of_the_journal_shows(client, user, agent, monkeypatch) -> None:
    monkeypatch.setattr("ravi_django.api.filters.MAX_BYTES", 5_000)
    run = submit(agent, "hi", user=user)
    approval_of(run)
    entry = {"run": run, "kind": "log", "started_at": run.created_at, "finished_at": run.created_at}
    for place in range(9):
        blob = make_blob(to_json({"text": f"{place}" * 2_000}), compress=True)
        blob.save()
        ref = {BLOB_KEY: blob.id, "size": blob.size}
        JournalEntry.objects.create(**entry, seq=place + 1, path=f"p{place}", result=ref)

    with loaded(Blob) as bodies:
        page = client.get(f"/ravi/runs/{run.id}/journal/?limit=200").json()
    again = client.get(page["next"]).json()["results"]
    with loaded(Run) as runs:  # without their outputs
        client.get("/ravi/requests/")

    assert ([row["result"]["text"][0] for row in page["results"]], len(bodies)) == (["0", "1"], 2)
    assert [row["seq"] for row in again] == [3, 4]
    assert [one.get_deferred_fields() >= {"output", "metadata"} for one in runs] == [True]


# ------------------------------------------------------------------------------------------------- branches


@pytest.mark.django_db
def test_forks_of_a_conversation_are_one_entry_and_versions_of_a_message(user: Any, root: Any, agent: str) -> None:
    first = submit(AGENT, "first", user=user, session="t1")
    other = submit(AGENT, "other", user=user)
    client = client_of(user)

    def fork(run: Any, **body: Any) -> dict[str, Any]:
        return client.post(f"/ravi/runs/{run}/fork/", body, format="json").json()

    edited = fork(first.id, input="edited")
    again = fork(edited["id"], input="again")
    Run.objects.filter(id=other.id).update(status=Status.COMPLETED)
    submit(AGENT, "more", user=user, session=other.session_id)

    def listed(reader: Any = user, filters: str = "&mine=true") -> list[str]:
        page = client_of(reader).get(f"/ravi/sessions/?ordering=-updated_at{filters}").json()
        return [one["id"] for one in page["results"]]

    def branches(session: Any) -> Any:
        return client.get(f"/ravi/sessions/{session}/").json()["branches"]

    versions = [[{"run": str(first.id), "session": str(first.session_id)}]]
    versions[0] += [{"run": one["id"], "session": one["session"]} for one in (edited, again)]
    assert listed() == [str(other.session_id), again["session"]]
    assert branches(first.session_id) == branches(again["session"]) == versions and branches(other.session_id) == []
    assert (listed(root), listed(root, "")) == ([], listed())
    assert listed(filters="&name=t1") == [again["session"]] and len(listed(filters="&newest_fork=false")) == 4
    Run.objects.update(status=Status.COMPLETED)
    older = submit(AGENT, "in the older branch", user=user, session=first.session_id)
    assert (listed()[0], listed(filters="&name=t1")) == (str(older.session_id), [again["session"]])
    assert str(submit(AGENT, "more", user=user, session="t1").session_id) == again["session"] == listed()[0]
    Session.objects.filter(id=again["session"]).delete()
    assert listed() == [str(older.session_id), str(other.session_id)]


@pytest.mark.django_db
def test_a_conversation_has_a_name_of_its_user_and_tenant(user: Any, stranger: Any, agent: str, settings: Any) -> None:
    def said(reader: Any, session: Any, **more: Any) -> Any:
        body = {"agent": agent, "input": "hi", "session": session, **more}
        return client_of(reader).post("/ravi/runs/", body, format="json")

    first = said(user, "support", idempotency_key="k").json()["session"]

    assert said(user, "support").json()["session"] == first != said(stranger, "support").json()["session"]
    again = said(user, "support", idempotency_key="k")
    assert (again.status_code, again.json()["session"]) == (200, first)
    assert said(user, first.upper()).json()["session"] == first, "a UUID is an id"
    for reader, absent in ((stranger, first), (user, str(uuid4()))):
        assert said(reader, absent).status_code == 404
    assert client_of(user).get(f"/ravi/sessions/{first}/").json()["name"] == "support"
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: "acme"}
    moved = said(user, "support").json()["session"]
    assert (moved != first, Session.objects.get(id=moved).tenant, Run.objects.latest("id").tenant) == (
        True,
        "acme",
        "acme",
    )
