"""Sources that are directories: each file is told once and put aside after that, whatever dies in between."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ravi_django.models import InboxMessage, Signal, Source, SourceItem
from tests.support import world
from tests.support.runs import code

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def inside(tmp_path: Path, settings: Any) -> Path:
    settings.RAVI = {**settings.RAVI, "DROP_ROOTS": [str(tmp_path)], "MAX_INPUT_BYTES": 1000, "SOURCE_MAX_BYTES": 5000}
    code(lambda ctx, inbox: None)
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def put(inside: Path, name: str, body: str = "words") -> None:
    (inside / name).write_text(body)
    os.utime(inside / name, (time.time() - 60,) * 2)


def declare(inside: Path, **fields: Any) -> Source:
    return Source.objects.create(name="in", kind="drop", location=str(inside), agent="test/code", **fields)


def poll(source: Source) -> Source:
    Source.objects.filter(id=source.id).update(next_at=None, polling_until=None)
    world.poll_due(1)
    source.refresh_from_db()
    return source


def told() -> list[str]:
    boots = [row.body["payload"]["data"]["title"] for row in InboxMessage.objects.order_by("id")]
    return boots + [signal.payload["title"] for signal in Signal.objects.order_by("id")]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.exists() else []


def test_files_are_told_and_put_aside(inside: Path) -> None:
    for name in ("a.txt", "b.md"):
        put(inside, name)

    source = poll(declare(inside))

    assert sorted(told()) == ["a.txt", "b.md"]
    assert (names(inside), names(inside / "done")) == ([], ["a.txt", "b.md"])
    assert (source.error, source.failures) == ("", 0) and source.checked_at is not None


def test_one_that_fails_does_not_hold_up_the_others(inside: Path) -> None:
    put(inside, "bad.json", "{")
    put(inside, "big.txt", "x" * 1001)
    put(inside, "huge.bin", "x" * 5001)
    put(inside, "good.txt")

    source = poll(declare(inside))

    assert told() == ["good.txt"] and names(inside / "failed") == ["bad.json", "big.txt", "huge.bin"]
    assert all(name in source.error for name in ("bad.json", "big.txt", "huge.bin")) and source.failures == 0


def test_a_poller_that_dies_before_it_has_put_them_aside_tells_once(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(inside, "a.txt")
    source = declare(inside)

    def die(*args: Any) -> str:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        world.patch(patch, "drops_put_aside", die)
        poll(source)
    assert names(inside) == ["a.txt"] and told() == ["a.txt"]

    poll(source)

    assert (told(), names(inside), names(inside / "done")) == (["a.txt"], [], ["a.txt"])


def test_while_nobody_can_be_told_the_files_stay(inside: Path) -> None:
    put(inside, "a.txt")
    source = poll(declare(inside, owner=None))
    put(inside, "b.txt")
    Source.objects.update(agent="test/gone")

    source = poll(source)

    assert names(inside) == ["b.txt"] and "test/gone" in source.error and source.failures == 1


def test_two_pollers_tell_once(inside: Path) -> None:
    put(inside, "a.txt")
    source = declare(inside)
    first, second = (world.drops_look(str(inside), {}) for _ in range(2))

    for polled in (first, second):
        assert not world.tell(source, polled.items).error
    assert [polled.after() for polled in (first, second)] == ["", ""]

    assert told() == ["a.txt"] and SourceItem.objects.count() == 1 and names(inside / "done") == ["a.txt"]


def test_a_file_that_is_replaced_while_it_is_told_is_told_with_the_next_poll(inside: Path) -> None:
    put(inside, "a.txt")
    source = declare(inside)
    polled = world.drops_look(str(inside), {})
    put(inside, "a.txt", "other words")

    assert world.tell(source, polled.items).new == 1
    assert (polled.after(), names(inside)) == ("", ["a.txt"])

    poll(source)
    assert [signal.payload["text"] for signal in Signal.objects.all()] == ["other words"]
    assert (names(inside), names(inside / "done")) == ([], ["a.txt"])


def test_a_directory_out_of_bounds_or_gone_is_an_error(inside: Path, tmp_path: Path, settings: Any) -> None:
    source = declare(inside)
    settings.RAVI = {**settings.RAVI, "DROP_ROOTS": [str(inside / "deeper")]}
    put(inside, "a.txt")

    assert "DROP_ROOTS" in poll(source).error
    settings.RAVI = {**settings.RAVI, "DROP_ROOTS": [str(tmp_path)]}
    inside.rename(tmp_path / "moved")
    source = poll(source)
    assert ("cannot be looked into" in source.error, source.failures, told()) == (True, 2, [])


def test_what_is_left_over_is_looked_at_soon(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "AT_ONCE_BYTES", 10)
    for name in ("a.txt", "b.txt", "c.txt"):
        put(inside, name)
    source = declare(inside)

    source = poll(source)

    assert len(told()) == 1 and source.next_at is not None
    assert (source.next_at - source.checked_at).total_seconds() < 5
