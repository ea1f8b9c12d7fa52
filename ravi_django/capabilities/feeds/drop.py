"""Drop directories: each file is read once, when it is complete, and then moved to `done/` or `failed/` below it.

Links and devices are refused. The operator controls write access to the roots. POSIX only.
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

from ravi_django.capabilities.feeds.adapter import TEXT_LENGTH, Item, items_in
from ravi_django.kernel.errors import InvalidInputError
from ravi_django.kernel.json_values import read_json, storable

DONE, FAILED = "done", "failed"
SETTLED_S = 2.0  # without a change, until a file counts as complete; a moved file keeps its time of writing
MOST = 200  # files of one poll
TEXTS = {".txt", ".md", ".markdown", ".csv", ".log", ".rst", ""}
UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", ".swp", "~")


Stamp = tuple[int, int, int]  # inode, size in bytes, time of the last write in nanoseconds


class DropError(Exception):
    """The directory or a file cannot be read. The message names it and the fix."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that was read."""

    name: str
    digest: str  # SHA-256 of its bytes; empty: the file was not read
    items: tuple[Item, ...] = ()
    error: str = ""  # why it goes to `failed/`
    stamp: Stamp | None = None  # of the file that was read: a new file of the same name is not moved


def resolve(location: str, roots: Iterable[str]) -> Path:
    """The directory with its links resolved. Raises DropError when it is not below one of the roots."""
    try:
        found = Path(location).resolve(strict=True)
        allowed = [Path(root).resolve() for root in roots]
    except (OSError, ValueError, RuntimeError) as error:
        raise DropError(f"{location} cannot be read: {_why(error)}") from None
    if not any(found.is_relative_to(root) for root in allowed):
        raise DropError(f"{location} is not below one of RAVI['DROP_ROOTS']; add its root there, or use another path")
    if not found.is_dir():
        raise DropError(f"{location} is not a directory")
    return found


class Drop:
    """A directory below one of the roots."""

    def __init__(self, location: str, roots: Iterable[str]) -> None:
        self.path = resolve(location, roots)

    def names(self, now: float | None = None) -> list[str]:
        """The complete files, the oldest first, at most 200."""
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
            raise DropError(f"{self.path} cannot be read: {_why(error)}") from None
        return [name for _, name in sorted(found)[:MOST]]

    def take(self, name: str, options: Mapping[str, Any], *, most: int, most_text: int) -> Taken | None:
        """Read a file. Text and Markdown become one item, JSON as many as it has. An item of any other file has only
        its name, size and type. The limit is `most` bytes, and `most_text` bytes for text and JSON. None: the file was
        removed, or is still being written.
        """
        shown = _printable(name)
        stamp = _stamp(_about(self.path / name))
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self.path / name, flags), "rb") as handle:
                about = os.fstat(handle.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
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
        """Move the file to `done/` or `failed/`, unless another process has. A new file of the same name is left for
        the next poll. Raises DropError."""
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
                f"{_printable(taken.name)} cannot be moved to {folder.name}/: {_why(error)}; "
                "give the worker write access to the directory"
            ) from None


def _about(place: Path | os.DirEntry[str]) -> os.stat_result | None:
    """None when the file does not exist."""
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
        return items_in(storable(read_json(body, texts=False)), options)
    text = body.decode("utf-8-sig", errors="replace")
    return [Item(id=identity, title=name, text=text, extra={**about, "cut": len(text.strip()) > TEXT_LENGTH})]


def _stamp(about: os.stat_result | None) -> Stamp | None:
    return about and (about.st_ino, about.st_size, about.st_mtime_ns)


def _free(folder: Path, taken: Taken) -> Path:
    """A path that overwrites no other file. The added suffix comes from the file's digest, so that the same file again
    gets the same path."""
    if not os.path.lexists(folder / taken.name):
        return folder / taken.name
    stem, suffix = os.path.splitext(taken.name)
    mark = taken.digest[:12] or str(time.time_ns())
    return folder / f"{stem[: 200 - len(suffix)]}.{mark}{suffix}"


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def _printable(name: str) -> str:
    return name.encode(errors="replace").decode() if not name.isascii() else name
