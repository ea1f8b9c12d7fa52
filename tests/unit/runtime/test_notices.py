"""Hints about requests: they may be lost, and harm nobody when they are."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from channels.layers import channel_layers

from project.process import wait_until
from ravi_django import signals
from tests.support import world
from tests.support.patience import BOUND_S


class Layer:
    """A channel layer that works across processes, as far as it is let."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.let = threading.Event()
        self.let.set()
        self.fails = 0

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        while not self.let.is_set():
            await asyncio.sleep(0.01)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("down")
        self.sent.append(message["ids"])

    @property
    def ids(self) -> list[str]:
        return [id for batch in self.sent for id in batch]


@pytest.fixture
def layer(monkeypatch) -> Any:
    found = Layer()
    world.patch(monkeypatch, "notices_complained_at", None)
    world.patch(monkeypatch, "NOTICES_REST_S", 0.05)
    before = channel_layers.set("default", found)
    world.notices_close()
    yield found
    world.notices_close()
    channel_layers.backends.pop("default", None)
    if before is not None:
        channel_layers.set("default", before)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ravi-notices"]


def test_many_hints_are_a_few_messages_from_one_thread(layer) -> None:
    layer.let.clear()
    for number in range(250):
        world.notices_hint(str(number))
    assert threads() == ["ravi-notices"]
    layer.let.set()
    assert wait_until(lambda: len(layer.ids) == 250, BOUND_S)
    assert layer.ids == [str(number) for number in range(250)]
    assert len(layer.sent) <= 4


def test_a_full_queue_drops_the_oldest(layer, monkeypatch) -> None:
    world.patch(monkeypatch, "NOTICES_MOST", 10)
    layer.let.clear()
    world.notices_hint("under way")
    assert wait_until(lambda: world.notices_sender is not None and not world.notices_sender._waiting, BOUND_S)
    for number in range(25):
        world.notices_hint(str(number))
    layer.let.set()
    assert wait_until(lambda: "24" in layer.ids, BOUND_S)
    assert layer.ids == ["under way", *(str(number) for number in range(15, 25))]


def test_a_layer_that_fails_is_told_of_once_and_tried_again(layer, caplog) -> None:
    layer.fails = 2
    with caplog.at_level(logging.WARNING, "ravi.notices"):
        world.notices_hint("1")
        assert wait_until(lambda: layer.fails == 1, BOUND_S)

        def arrives() -> bool:
            world.notices_hint("2")
            return "2" in layer.ids

        assert wait_until(arrives, BOUND_S)

    assert layer.fails == 0
    assert len(caplog.records) == 1
    assert "ConnectionError: down" in caplog.text


def test_a_layer_that_cannot_be_made_raises_nothing(settings, monkeypatch, caplog) -> None:
    world.patch(monkeypatch, "notices_complained_at", None)
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "no.such.Layer"}}
    with caplog.at_level(logging.WARNING, "ravi.notices"):
        world.notices_hint("1")
    assert "no.such.Layer" in caplog.text


def test_what_waits_is_sent_before_the_thread_ends(layer) -> None:
    layer.let.clear()
    for number in range(150):
        world.notices_hint(str(number))
    layer.let.set()
    world.notices_close()
    assert len(layer.ids) == 150
    assert threads() == []


def test_a_layer_that_hangs_does_not_hold_up_the_end(layer, monkeypatch) -> None:
    world.patch(monkeypatch, "SEND_S", 0.1)
    layer.let.clear()
    world.notices_hint("1")
    world.notices_close()
    assert wait_until(lambda: threads() == [], BOUND_S)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork with threads, on newer Pythons
def test_a_forked_child_makes_a_thread_of_its_own(layer) -> None:
    world.notices_hint("parent")
    assert wait_until(lambda: layer.ids == ["parent"], BOUND_S)
    read, write = os.pipe()

    child = os.fork()
    if child == 0:
        layer.sent.clear()
        world.notices_hint("child")
        wait_until(lambda: layer.ids == ["child"], BOUND_S)
        os.write(write, ",".join(layer.ids).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 100) == b"child"
    os.close(read)
    os.close(write)


def test_every_kind_of_change_hints(layer) -> None:
    changes = (signals.request_opened, signals.request_answered, signals.request_closed, signals.request_changed)
    for number, signal in enumerate(changes):
        signal.send(sender=None, request=SimpleNamespace(pk=number))
    assert wait_until(lambda: layer.ids == ["0", "1", "2", "3"], BOUND_S)
