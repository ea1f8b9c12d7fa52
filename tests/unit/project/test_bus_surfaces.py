"""What an operator sees of the event bus: checks, health, the doctor, figures, and the commands."""

import asyncio
import json
import signal
import subprocess
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from rest_framework.test import APIClient

from project.celery import app
from ravi_django.api.metrics import PROMETHEUS
from ravi_django.checks import check_wings
from ravi_django.kernel import Event
from ravi_django.management.diagnosis import services
from ravi_django.models import OutboxEvent
from tests.support import forks, world
from tests.support.cases import case
from tests.support.patience import seconds
from tests.support.world import Bus, get_bus

pytestmark = pytest.mark.django_db(transaction=True)


def site(settings: Any, **given: Any) -> None:
    settings.RAVI = {**settings.RAVI, **given}


def publish(*events: Event) -> None:
    async def send() -> None:
        bus: Bus = get_bus()
        for event in events:
            await bus.publish(event)
        await bus.close()

    asyncio.run(send())


def test_a_bus_that_cannot_work_is_found_before_it_fails(settings: Any) -> None:
    before = settings.RAVI
    for given, ids in [
        ({"EVENT_BUS": None}, []), ({"EVENT_BUS": "memory", "ENGINE": "inline"}, []),
        ({"EVENT_BUS": "redis://host:6379/1"}, []), ({"EVENT_BUS": "rediss://host"}, []),
        ({"EVENT_BUS": "memory", "ENGINE": "celery"}, ["ravi.W020"]),
        ({"EVENT_BUS": "kafka://host"}, ["ravi.E020"]), ({"EVENT_BUS": True}, ["ravi.E020"]),
        ({"EVENT_BUS": ""}, ["ravi.E020"]),
    ]:  # fmt: skip
        with case(given, ids):
            settings.RAVI = {**before, **given}
            assert [found.id for found in check_wings()] == ids
    # auto without a redis is one process
    settings.RAVI = {**before, "EVENT_BUS": "auto", "ENGINE": "celery", "STREAM_URL": None}
    settings.CHANNEL_LAYERS = {}
    app.conf.broker_write_url = "amqp://host"
    assert [found.id for found in check_wings()] == ["ravi.W020"]


def wait_for_bus(count: int, seconds: float) -> None:
    for number in range(count):
        body = {"id": f"{number}", "type": "a.b", "source": "test"}
        OutboxEvent.objects.create(topic="events", body=body, created_at=timezone.now() - timedelta(seconds=seconds))


def test_what_waits_is_told_and_fails_nothing(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "health_worker", lambda: "1 alive")
    world.patch(monkeypatch, "health_sweep", lambda: "just now")
    assert "event_bus" not in {check.name for check in world.check_all()}

    site(settings, EVENT_BUS="redis://127.0.0.1:1/0")
    assert world.event_bus() == "nothing waits"
    wait_for_bus(2, 3)
    assert world.event_bus().startswith("2 events wait, the oldest for 3 s")
    OutboxEvent.objects.all().delete()
    wait_for_bus(2, 300)

    (found,) = [check for check in world.check_all() if check.name == "event_bus"]
    assert found.ok and "late" in found.detail
    (finding,) = [finding for finding in services() if finding.what.startswith("event_bus")]
    assert finding.level == "warning" and "EVENT_BUS" in finding.fix


def test_monitors_see_what_waits(settings: Any, admin_user: Any) -> None:
    client = APIClient()
    client.force_authenticate(admin_user)
    wait_for_bus(3, 60)

    def text() -> str:
        return client.get("/ravi/metrics/", headers={"accept": PROMETHEUS.partition(";")[0]}).content.decode()

    assert "ravi_outbox" not in text()
    site(settings, EVENT_BUS="memory")
    lines = text().splitlines()
    assert "ravi_outbox_events 3" in lines
    (age,) = [float(line.split()[1]) for line in lines if line.startswith("ravi_outbox_oldest_seconds ")]
    assert 60 <= age < 120
    assert "ravi_outbox_refused 0" in lines
    OutboxEvent.objects.filter(id=OutboxEvent.objects.earliest("id").pk).update(tries=5, error="WRONGTYPE")
    assert {"ravi_outbox_events 2", "ravi_outbox_refused 1"} <= {*text().splitlines()}


def lines_of(*arguments: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("ravi_events", *arguments, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_events_are_printed_as_lines(settings: Any, valkey_url: str) -> None:
    site(settings, EVENT_BUS=valkey_url)
    publish(
        Event.create("run.started", source="test", correlation_id="r1"),
        Event.create("run.started", source="test", correlation_id="r2", root="r1"),
        Event.create("hitl.requested", source="test", correlation_id="r3", text="\x1b[31m\u202ered"),
    )

    everything = lines_of()

    assert [line["correlation_id"] for line in everything] == ["r1", "r2", "r3"]
    assert [line["correlation_id"] for line in lines_of("--type", "run.*")] == ["r1", "r2"]
    assert [line["correlation_id"] for line in lines_of("--run", "r1")] == ["r1", "r2"]
    assert [line["correlation_id"] for line in lines_of("--after", everything[1]["position"])] == ["r3"]
    out = StringIO()
    call_command("ravi_events", stdout=out)
    assert out.getvalue().isascii() and "\x1b" not in out.getvalue()


def test_without_a_bus_the_commands_say_what_to_set(settings: Any) -> None:
    for command in (["ravi_events"], ["ravi_subscribe", "os.getpid"]):
        with pytest.raises(CommandError, match="EVENT_BUS"):
            call_command(*command)
    site(settings, EVENT_BUS="memory")
    with pytest.raises(CommandError, match="shop"):
        call_command("ravi_subscribe", "shop.nothing")
    with pytest.raises(CommandError, match="not a function"):
        call_command("ravi_subscribe", "sys.path")
    site(settings, EVENT_BUS="redis://127.0.0.1:1/0")
    with pytest.raises(CommandError, match="the event bus: "):
        call_command("ravi_events")


def told(event: Event) -> None:
    """What the process below is given."""
    print(event.type, event.data["number"], flush=True)


def test_a_process_gives_events_to_a_function(settings: Any, valkey_url: str) -> None:
    site(settings, EVENT_BUS=valkey_url)
    code = (
        "import django; django.setup()\n"
        "from django.conf import settings; from django.core.management import call_command\n"
        f"settings.RAVI = {{**settings.RAVI, 'EVENT_BUS': {valkey_url!r}}}\n"
        "call_command('ravi_subscribe', 'tests.unit.project.test_bus_surfaces.told', '--type', 'run.*', '--after', '0')"
    )
    publish(*(Event.create(type, source="test", number=number) for number, type in enumerate(["run.a", "b", "run.c"])))
    process = forks.Popen(["-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("ravi_subscribe: tests.unit.project.test_bus_surfaces.told reads events as tests.")
        assert [process.stdout.readline() for _ in range(2)] == ["run.a 0\n", "run.c 2\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(seconds(20)) == 0
    finally:
        process.kill()
        process.communicate(timeout=seconds(10))
