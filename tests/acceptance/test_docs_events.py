"""What docs/howto/events.md shows is run here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command, get_commands, load_command_class
from django.db import connections

from ravi_django.checks import check_settings, check_wings
from ravi_django.kernel import Event
from ravi_django.kernel.event_types import SCHEMA_VERSIONS
from ravi_django.models import OutboxEvent, Signal
from tests.support import world
from tests.support.docs import Page
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, code, drive, make_run
from tests.support.world import get_bus

pytestmark = pytest.mark.django_db(transaction=True)

PAGE, EVENTS = Page("events"), Page("bus-events")


@pytest.fixture(autouse=True)
def _site(settings: Any, monkeypatch: pytest.MonkeyPatch, valkey_url: str) -> Iterator[None]:
    settings.RAVI = {**settings.RAVI, **PAGE.run("settings.py")["RAVI"], "STREAM_URL": valkey_url}
    world.silence(monkeypatch, "courier_hint")
    yield


async def answers(ctx: Any, inbox: Any) -> str:
    return "fine"


def test_the_pages_settings_pass_the_checks() -> None:
    assert [found.id for found in [*check_settings(), *check_wings()] if "EVENT" in found.msg] == []


def test_the_pages_programs_hear_of_a_run(capsys: Any) -> None:
    watch, tail = PAGE.run("shop/watch.py")["watch"], PAGE.run("shop/tail.py")["tail"]
    code(answers)
    other, run = drive(make_run()), drive(make_run())

    async def story() -> list[str]:
        bus = get_bus()
        await watch()
        await asyncio.to_thread(_relay)
        seen = []
        async for position, type in tail(str(run.id)):
            assert position
            seen.append(type)
            if len(seen) == 3:
                break
        await auntil(lambda: "run.completed" in _said(capsys))
        await bus.close()
        return seen

    said: list[str] = []

    def _said(capsys: Any) -> str:
        said.append(capsys.readouterr().out)
        return "".join(said)

    assert asyncio.run(story()) == ["workflow.started", "run.started", "run.completed"]
    assert "test/code" in "".join(said) and other.status == "completed"


def _relay() -> None:
    world.relay()
    connections.close_all()


def test_the_pages_sale_is_told_in_its_transaction() -> None:
    sell = PAGE.run("shop/sales.py")["sell"]
    sell(SimpleNamespace(pk=7, amount=3, save=lambda: None))
    with pytest.raises(RuntimeError):
        sell(SimpleNamespace(pk=8, amount=3, save=_fails))

    (row,) = OutboxEvent.objects.all()
    assert (row.body["type"], row.body["correlation_id"], row.body["data"]) == ("shop.sold", "7", {"amount": 3})


def _fails() -> None:
    raise RuntimeError


def test_the_pages_agent_is_fed() -> None:
    feed = PAGE.run("shop/feeding.py")["feed"]

    async def listens(ctx: Any, inbox: Any) -> str:
        return str(await ctx.sleep_until_signal("new_source_item"))

    code(listens)
    run = drive(make_run())

    async def story() -> None:
        bus = get_bus()
        await feed(run)
        await bus.publish(Event.create("run.completed", source="test"))
        await auntil_async(lambda: Signal.objects.filter(run=run).aexists())
        await bus.close()
        await sync_to_async(connections.close_all)()

    asyncio.run(story())
    assert "run.completed" in (drive(run).output or "")


async def auntil_async(condition: Any) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await condition():
            await asyncio.sleep(0.005)


def test_the_pages_commands_are_there() -> None:
    commands = re.findall(r"manage\.py (ravi_events|ravi_subscribe) (.*?)(?:  +#|\n)", PAGE.text)
    assert len(commands) == 3
    for name, arguments in commands:
        parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
        parser.parse_args([part.strip('"') for part in arguments.split()])
    out = StringIO()
    call_command("ravi_events", "--run", "0199c0de-0000-7000-8000-000000000000", stdout=out)
    assert out.getvalue() == ""


def test_the_page_lists_every_type() -> None:
    listed = set(re.findall(r"`((?:workflow|run|agent|hitl|budget|event)\.[a-z]+)`", EVENTS.text))
    assert set(SCHEMA_VERSIONS) <= listed | {"event.undelivered"}
    assert "`event.undelivered`" in EVENTS.text
