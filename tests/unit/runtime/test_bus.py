"""Which event bus a site has, and what the kernel says of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured

from ravi_django import kernel
from ravi_django.kernel import Event, EventPublisher, EventSubscriber, event_types
from ravi_django.kernel.event_types import SCHEMA_VERSIONS, workflow_started
from tests.support.world import Bus, MemoryBus, ValkeyBus, forget_buses, get_bus


@pytest.fixture(autouse=True)
def _no_buses() -> Iterator[None]:
    yield
    forget_buses()


@pytest.mark.sqlite
def test_auto_is_this_process_where_there_is_no_redis(settings: Any) -> None:
    settings.RAVI = {**settings.RAVI, "EVENT_BUS": "auto", "STREAM_URL": None, "ENGINE": "inline"}
    settings.CHANNEL_LAYERS = {}
    publishes: EventPublisher = get_bus()
    reads: EventSubscriber = get_bus()

    assert isinstance(publishes, MemoryBus) and publishes is reads and isinstance(reads, Bus)


def test_the_setting_says_which_bus(settings: Any, valkey_url: str) -> None:
    site = dict(settings.RAVI)
    settings.RAVI = {**site, "EVENT_BUS": None}
    with pytest.raises(ImproperlyConfigured, match="RAVI\\['EVENT_BUS'\\]"):
        get_bus()
    for given, kind in (("memory", MemoryBus), ("auto", ValkeyBus), (valkey_url, ValkeyBus)):
        settings.RAVI = {**site, "EVENT_BUS": given, "STREAM_URL": valkey_url}
        assert isinstance(get_bus(), kind) and get_bus() is get_bus(), given


def test_every_type_has_its_factory() -> None:
    for type in SCHEMA_VERSIONS:
        assert callable(getattr(event_types, type.replace(".", "_"))), type
    assert {"Event", "EventPublisher", "EventSubscriber"} <= {*kernel.__all__}


def test_a_factory_takes_ids_as_they_come() -> None:
    run, thread = uuid4(), uuid4()

    by_uuid = workflow_started(run_id=run, thread_id=thread, user_content="hi")
    by_text = workflow_started(run_id=str(run), thread_id=str(thread), user_content="hi")

    assert by_uuid.type == "workflow.started" and by_uuid.schema_version == 1
    assert by_uuid.correlation_id == by_text.correlation_id == str(run)
    assert by_uuid.data == by_text.data
    assert (by_uuid.data["run"], by_uuid.data["thread"]) == (str(run), str(thread))
    assert by_uuid.data["user_content"] == "hi"
    assert Event.model_validate_json(by_uuid.model_dump_json()) == by_uuid
