"""A directory that files are put into: each is taken whole, once, and put aside in `done/` or `failed/` beside it.

Links and devices in it are refused. Who may write to the roots is the operator's business. POSIX.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ravi_django.capabilities.feeds.fields import items_in
from ravi_django.capabilities.feeds.item import TEXT_LENGTH, Item
from ravi_django.kernel.errors import InvalidInputError

DONE, FAILED = "done", "failed"
SETTLED_S = 2.0  # without a change, before a file is whole: one that is moved in keeps the time it was written
MOST = 200  # files of one poll
TEXTS = {".txt", ".md", ".markdown", ".csv", ".log", ".rst", ""}
UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", ".swp", "~")


Stamp = tuple[int, int, int]  # the inode, the size in bytes, and when it was written last in nanoseconds


class DropError(Exception):
    """The directory cannot be read, or the file: its words name which, and the fix."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that was read."""

    name: str
    digest: str  # SHA-256 of its bytes; empty: they were not read
    items: tuple[Item, ...] = ()
    error: str = ""  # why it goes to `failed/`
    stamp: Stamp | None = None  # of the file that was read: another under its name is not put aside


def resolve(location: str, roots: Iterable[str]) -> Path:
    """The directory, when it lies below one of the roots, whatever links lead there. Raises DropError."""
    try:
        found = Path(location).resolve(strict=True)
        allowed = [Path(root).resolve() for root in roots]
    except (OSError, ValueError, RuntimeError) as error:
        raise DropError(f"{location} cannot be looked into: {_why(error)}") from None
    if not any(found.is_relative_to(root) for root in allowed):
        raise DropError(f"{location} is below none of RAVI['DROP_ROOTS']; name its root there, or another directory")
    if not found.is_dir():
        raise DropError(f"{location} is no directory")
    return found


class Drop:
    """A directory below one of the roots."""

    def __init__(self, location: str, roots: Iterable[str]) -> None:
        self.path = resolve(location, roots)

    def names(self, now: float | None = None) -> list[str]:
        """The files that are whole, the oldest first, at most 200."""
        now = time.time() if now is None else now
        found: list[tuple[int, str]] = []
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name.lower().endswith(UNFINISHED):
                        continue
                    about = _about(entry)
                    if about is None or not stat.S_ISREG(about.st_mode) or 0 <= now - about.st_mtime < SETTLED_S:
                        continue
                    found.append((about.st_mtime_ns, entry.name))
        except OSError as error:
            raise DropError(f"{self.path} cannot be looked into: {_why(error)}") from None
        return [name for _, name in sorted(found)[:MOST]]

    def take(self, name: str, options: Mapping[str, Any], *, most: int, most_text: int) -> Taken | None:
        """Read a file: a text or Markdown is one item, JSON as many as it has, and of any other only its name, size
        and type are told. At most `most` bytes, of which `most_text` may be words. None: it is gone, or still changes.
        """
        shown = _printable(name)
        stamp = _stamp(_about(self.path / name))
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self.path / name, flags), "rb") as handle:
                about = os.fstat(handle.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file")
                if about.st_size > most:
                    return Taken(name, "", (), f"{shown} has {about.st_size} bytes, the limit is {most}", stamp)
                body = handle.read(most + 1)
                if len(body) != about.st_size or _stamp(os.fstat(handle.fileno())) != stamp:
                    return None
        except FileNotFoundError:
            return None
        except OSError as error:
            return Taken(name, "", (), f"{shown} cannot be read: {_why(error)}", stamp)
        digest = hashlib.sha256(body).hexdigest()
        try:
            return Taken(name, digest, tuple(_items(shown, body, digest, options, most_text)), stamp=stamp)
        except (InvalidInputError, ValueError) as error:
            place = f", {error.field}" if isinstance(error, InvalidInputError) and error.field else ""
            return Taken(name, digest, (), f"{shown}{place}: {error}", stamp)

    def put_aside(self, taken: Taken) -> None:
        """Move the file out of the way; nothing when somebody else has. A file that has come in its place since it
        was read is left for the next poll. Raises DropError."""
        folder = self.path / (FAILED if taken.error else DONE)
        try:
            if _stamp(_about(self.path / taken.name)) != taken.stamp:
                return
            folder.mkdir(0o750, exist_ok=True)
            if folder.is_symlink():
                raise OSError(errno.ELOOP, "it is a link")
            os.rename(self.path / taken.name, _free(folder, taken))
        except FileNotFoundError:
            return
        except OSError as error:
            raise DropError(
                f"{_printable(taken.name)} cannot be moved to {folder.name}/: {_why(error)}; let the worker write there"
            ) from None


def _about(place: Path | os.DirEntry[str]) -> os.stat_result | None:
    """None: it is gone."""
    try:
        return place.stat(follow_symlinks=False)
    except OSError:
        return None


def _items(name: str, body: bytes, digest: str, options: Mapping[str, Any], most_text: int) -> list[Item]:
    identity = f"file:{name}:{digest}"
    kind = Path(name).suffix.lower()
    about: dict[str, Any] = {"file": name, "bytes": len(body), "sha256": digest}
    if kind != ".json" and kind not in TEXTS:
        return [Item(id=identity, title=name, extra={**about, "type": guess_type(name)[0] or "unknown"})]
    if len(body) > most_text:
        raise ValueError(f"{len(body)} bytes of text, the limit is {most_text}")
    if kind == ".json":
        return items_in(from_json(body, allow_inf_nan=False), options)
    text = body.decode("utf-8-sig", errors="replace")
    return [Item(id=identity, title=name, text=text, extra={**about, "cut": len(text.strip()) > TEXT_LENGTH})]


def _stamp(about: os.stat_result | None) -> Stamp | None:
    return about and (about.st_ino, about.st_size, about.st_mtime_ns)


def _free(folder: Path, taken: Taken) -> Path:
    """Its own name, or one beside it: what lies there stays. By its bytes, so that the same file again is one."""
    if not os.path.lexists(folder / taken.name):
        return folder / taken.name
    stem, suffix = os.path.splitext(taken.name)
    mark = taken.digest[:12] or str(time.time_ns())
    return folder / f"{stem[: 200 - len(suffix)]}.{mark}{suffix}"


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def _printable(name: str) -> str:
    return name.encode(errors="replace").decode() if not name.isascii() else name
