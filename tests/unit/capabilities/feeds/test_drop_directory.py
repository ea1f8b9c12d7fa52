"""Files that are put into a directory: whole ones are taken, and nothing leads out of it."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ravi_django.capabilities.feeds import drop
from ravi_django.capabilities.feeds.drop import Drop, DropError, Taken
from tests.support.cases import case

MOST = {"most": 10_000, "most_text": 1_000}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "in").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def inside(root: Path) -> Path:
    return root / "in"


def put(inside: Path, name: str, body: bytes | str = "words", *, age: float = 60) -> Path:
    path = inside / name
    path.write_bytes(body.encode() if isinstance(body, str) else body)
    os.utime(path, (time.time() - age,) * 2)
    return path


def opened(inside: Path, root: Path) -> Drop:
    return Drop(str(inside), [str(root)])


def take(inside: Path, root: Path, name: str, **options: Any) -> Taken:
    taken = opened(inside, root).take(name, options, **MOST)
    assert taken is not None
    return taken


def test_only_below_a_root(root, inside, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (tmp_path / "way").symlink_to(inside)
    assert drop.resolve(str(inside), [str(root)]) == inside
    assert drop.resolve(str(tmp_path / "way"), [str(root)]) == inside, "what counts is where it leads"
    for location in (outside, root / "link", root / "in" / ".." / ".." / "outside", "/", "", "."):
        with pytest.raises(DropError, match="DROP_ROOTS"):
            drop.resolve(str(location), [str(root)])
    with pytest.raises(DropError, match="DROP_ROOTS"):
        drop.resolve(str(inside), [])
    # what is no directory is said
    file = put(inside, "a.txt")
    for location in (file, inside / "gone", "\0", inside / ("x" * 5000)):
        with pytest.raises(DropError):
            drop.resolve(str(location), [str(root)])


def test_whole_files_are_listed_the_oldest_first(root, inside):
    put(inside, "b.txt", age=50)
    put(inside, "a.txt", age=40)
    put(inside, "c", age=70)
    put(inside, "ahead.txt", age=-3600)
    for name in (".hidden", "x.part", "y.PART", "z.tmp", "w.crdownload", "v.txt~"):
        put(inside, name)
    put(inside, "fresh.txt", age=0)
    (inside / "folder").mkdir()
    (inside / "link.txt").symlink_to("/etc/hostname")
    os.mkfifo(inside / "pipe.txt")

    assert opened(inside, root).names() == ["c", "b.txt", "a.txt", "ahead.txt"]


def test_a_file_that_is_gone_or_still_grows_is_left(root, inside, monkeypatch):
    # a file counts as whole when nothing has changed for a while
    path = put(inside, "a.txt", age=0)
    found = opened(inside, root)
    assert found.names(path.stat().st_mtime + 1.9) == []
    assert found.names(path.stat().st_mtime + 2.1) == ["a.txt"]

    put(inside, "a.txt", "words")
    states = iter([b"more", b""])
    real = os.fstat

    def growing(handle: int) -> os.stat_result:
        found = real(handle)
        if next(states, b""):
            with (inside / "a.txt").open("ab") as file:
                file.write(b"more")
        return found

    assert found.take("gone.txt", {}, **MOST) is None
    monkeypatch.setattr(drop.os, "fstat", growing)
    assert found.take("a.txt", {}, **MOST) is None


def test_no_more_than_so_many_at_once(root, inside):
    # names of any bytes are taken
    name = os.fsdecode(b"caf\xe9\xff \n<b>.txt")
    put(inside, name)
    aside(inside, root, name)
    assert [path.name for path in (inside / "done").iterdir()] == [name]
    # no more than so many at once
    for number in range(drop.MOST + 5):
        put(inside, f"{number}.txt")
    assert len(opened(inside, root).names()) == drop.MOST


def test_what_is_read_of_a_file(root, inside):
    # a text is one item
    for name in ["a.txt", "a.md", "README", "a.CSV"]:
        with case(name):
            put(inside, name, b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe\xff\x00")
            (item,) = take(inside, root, name).items
            assert (item.title, item.text) == (name, "grüße\ufffd")
            assert item.extra["bytes"] == 12 and item.extra["cut"] is False
    # the same words under the same name are the same item
    put(inside, "a.txt")
    put(inside, "b.txt")
    first, other = (take(inside, root, name).items[0].identity for name in ("a.txt", "b.txt"))
    put(inside, "a.txt")
    again = take(inside, root, "a.txt").items[0].identity
    put(inside, "a.txt", "new words")
    edited = take(inside, root, "a.txt").items[0].identity
    assert first == again and len({first, other, edited}) == 3
    # json has items of its own
    put(inside, "a.json", '[{"key": 1, "title": "One"}, {"key": 2}]')
    assert [item.id for item in take(inside, root, "a.json", id="key").items] == ["1", "2"]
    # of other files only name size and type are told
    put(inside, "a.pdf", b"%PDF" + b"x" * 5000)
    (item,) = take(inside, root, "a.pdf").items
    assert (item.title, item.text) == ("a.pdf", "")
    assert (item.extra["type"], item.extra["bytes"]) == ("application/pdf", 5004)


def test_what_cannot_be_taken_is_said(root, inside):
    for name, body, words in [
        ("a.txt", "x" * 1001, "1001 bytes of text, the limit is 1000"),
        ("a.pdf", "x" * 10_001, "10001 bytes, the limit is 10000"), ("a.json", "{", "a.json: EOF"),
        ("a.json", "7", "a.json, body: the body must be"),
        ("a.json", '[{"title": {}}]', "a.json, 0.title: must be a text"), ("a.json", "[" * 999, "more than 200 levels"),
        ("a.json", "NaN", "a.json"), ("a.json", '[{"n": 1e999}]', "a.json, 0.n: the number is too large"),
    ]:  # fmt: skip
        with case(name, body, words):
            put(inside, name, body)
            taken = take(inside, root, name)
            assert words in taken.error and taken.items == ()
    # links pipes and folders are not opened
    (inside / "link.txt").symlink_to("/etc/hostname")
    os.mkfifo(inside / "pipe.txt")
    (inside / "folder.txt").mkdir()
    for name in ("link.txt", "pipe.txt", "folder.txt"):
        assert "cannot be read" in take(inside, root, name).error


def aside(inside: Path, root: Path, name: str) -> None:
    taken = take(inside, root, name)
    for _ in range(2):  # the second time somebody else was first
        opened(inside, root).put_aside(taken)


def test_what_was_taken_is_put_aside_and_overwrites_nothing(root, inside):
    for body in ("one", "two", "two"):
        put(inside, "a.txt", body)
        aside(inside, root, "a.txt")
    put(inside, "bad.json", "{")
    aside(inside, root, "bad.json")
    assert sorted(path.read_text() for path in (inside / "done").iterdir()) == ["one", "two"]
    assert [path.name for path in (inside / "failed").iterdir()] == ["bad.json"]
    assert not [path for path in inside.iterdir() if path.is_file()]


def replace(inside: Path, name: str, body: str) -> None:
    (inside / ".new").write_text(body)
    os.replace(inside / ".new", inside / name)


@pytest.mark.parametrize(("name", "body"), [("a.txt", "words"), ("bad.json", "{"), ("huge.pdf", "x" * 10_001)])
@pytest.mark.parametrize("how", ["another file", "other words of that length", "more words"])
def test_a_file_that_is_another_meanwhile_is_left_for_the_next_poll(root, inside, name, body, how):
    before = put(inside, name, body).stat()
    taken = take(inside, root, name)
    new = body + "y" if how == "more words" else body.swapcase()
    if how == "another file":
        replace(inside, name, new)
    else:
        (inside / name).write_text(new)
    if how != "other words of that length":
        os.utime(inside / name, ns=(before.st_atime_ns, before.st_mtime_ns))

    opened(inside, root).put_aside(taken)

    assert (inside / name).read_text() == new
    assert not [path for path in inside.rglob("*/*")], "nothing was put aside"
    aside(inside, root, name)
    assert not (inside / name).exists()


def test_what_stands_in_the_place_of_a_file_or_of_done_is_left(root, inside, tmp_path):
    # a file in the place of a pipe is left too
    os.mkfifo(inside / "pipe.txt")
    taken = take(inside, root, "pipe.txt")
    replace(inside, "pipe.txt", "words")
    opened(inside, root).put_aside(taken)
    assert taken.error and (inside / "pipe.txt").read_text() == "words"
    # a link in the place of done leads nowhere
    (tmp_path / "outside").mkdir()
    (inside / "done").symlink_to(tmp_path / "outside")
    put(inside, "a.txt")
    with pytest.raises(DropError, match="cannot be moved"):
        aside(inside, root, "a.txt")
    assert (inside / "a.txt").exists() and not list((tmp_path / "outside").iterdir())
