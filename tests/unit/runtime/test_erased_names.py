"""The name of a deleted user goes from everybody's rows and streams; a live run reads on what it has recorded."""

import json
import zlib
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core import serializers
from django.core.management import call_command

from ravi_django import register, signal
from ravi_django.kernel import AgentId
from ravi_django.models import Blob, Erasure, Run, Status, StreamArchive
from tests.support import world
from tests.support.approvals import call, payer, paying, run_of
from tests.support.runs import CodeAgent, asked, code, drive, make_run
from tests.support.world import fork

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

NAME = "ada.lovelace"


@pytest.fixture
def ada() -> Any:
    return get_user_model().objects.create_superuser(NAME)


def places() -> list[str]:
    """The rows and bodies that have the name somewhere."""
    models = [*apps.get_app_config("ravi").get_models(), *apps.get_app_config("admin").get_models()]
    rows = [row for model in models for row in serializers.serialize("python", model._default_manager.all())]
    bodies = [(blob.id, blob.body) for blob in Blob.objects.all()]
    texts = {id: (zlib.decompress(body) if body[:1] == b"x" else bytes(body)).decode() for id, body in bodies}
    found = [f"{row['model']} {row['pk']}" for row in rows if NAME in json.dumps(row["fields"], default=str)]
    streams = (str(world.archive_unpacked(archive.body)) for archive in StreamArchive.objects.all())
    return found + [text for text in (*texts.values(), *streams) if NAME in text]


def gone(user: Any) -> None:
    user.delete()
    world.erasing_sweep()
    assert get_user_model().objects.filter(username=NAME).count() == 0


def test_a_live_run_keeps_what_it_was_told_until_it_ends(ada: Any) -> None:
    told: list[str] = []

    async def story(ctx: Any, inbox: Any) -> str:
        answer = await ctx.ask_human("Which?", to=f"user:{NAME}")
        decision = await ctx.approve("pay", {"amount": 5}, to=f"user:{NAME}")
        told.append(answer["by"] + decision.by)
        await ctx.sleep_until_signal("go")
        return "done"

    code(story)
    run = drive(make_run())
    world.answer(asked(run), text="red", by=ada)
    drive(run)
    world.answer(asked(run), "approve", by=ada)
    run = drive(run)
    past = fork(run.id, run.next_seq - 1, send=print)
    gone(ada)
    assert {place.partition(" ")[0] for place in places()} == {"ravi.journalentry", "ravi.erasure"}
    for live in (run, past):
        signal(live.id, "go")
        live = drive(live)
        assert (live.status, told[-1].startswith(NAME)) == (Status.COMPLETED, True)
    world.erasing_sweep()
    assert (places(), Erasure.objects.count()) == ([], 0)


def test_neither_the_model_nor_the_stream_is_told_the_name(ada: Any) -> None:
    payer(paying([]), call(5))
    run = drive(run_of())
    world.reassign(asked(run), f"user:{NAME}")
    first = [frame["to"] for frame in world.events_page(run.id)[0] if frame["type"] == "request"]
    world.answer(asked(run), "deny", reason="no", sticky=True, by=ada)
    run = drive(run)
    again = drive(run_of(session=run.session))
    closed = [frame["answered_by"] for frame in world.events_page(run.id)[0] if frame["type"] == "request.closed"]
    gone(ada)
    assert (run.status, again.status, first, closed) == (*[Status.COMPLETED] * 2, [f"user:{NAME}"], [NAME])
    assert places() == []
    told = [frame for frame in world.events_page(run.id)[0] if frame["type"].startswith("request")]
    assert told[0]["to"].startswith("user:deleted-")
    assert told[1]["answered_by"].startswith("deleted-")


def test_a_cancellation_names_nobody(ada: Any, client: Any) -> None:
    async def child(ctx: Any, inbox: Any) -> None:
        await ctx.sleep_until_signal("never")

    register(CodeAgent(child, key="child"))

    async def story(ctx: Any, inbox: Any) -> str:
        return str(await ctx.ask(AgentId("test", "child"), "hi"))

    code(story)
    run = drive(make_run())
    below = drive(Run.objects.get(parent=run))
    client.force_login(ada)
    client.post(f"/ravi/ui/runs/{below.id}/cancel/", {}, content_type="application/json")
    other = make_run(owner=ada)
    client.post(f"/ravi/runs/{other.id}/cancel/", {}, content_type="application/json")
    run = drive(run)
    assert "cancelled by an administrator" in run.output
    assert list(Run.objects.filter(id=other.id).values_list("cancel_reason", flat=True)) == ["cancelled by its owner"]
    gone(ada)
    assert places() == []


def test_the_name_of_an_account_that_stays_goes_too(ada: Any) -> None:
    payer(paying([]), call(5))
    run = drive(run_of())
    world.answer(asked(run), "deny", sticky=True, by=ada)
    run = drive(run)
    call_command("ravi_erase", NAME)
    (closed,) = [frame for frame in world.events_page(run.id)[0] if frame["type"] == "request.closed"]
    assert closed["answered_by"].startswith("deleted-")
    assert places() == []
