"""A directory that files are put into: each is taken whole, once, and put aside in `done/` or `failed/` beside it.

Nothing is followed out of the directory, and nothing waited for: names are opened below the directory's own handle,
links and devices are refused. POSIX.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
    """The opened directory; a context manager."""

    def __init__(self, location: str, roots: Iterable[str]) -> None:
        path = resolve(location, roots)
        self.location = location
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with _closing(self._handle):
                # Again: a link may have been put on the way between looking and opening.
                if not os.path.samestat(os.fstat(self._handle), os.stat(resolve(location, roots))):
                    raise OSError(errno.ESTALE, "it was changed this moment")
        except OSError as error:
            raise DropError(f"{location} cannot be looked into: {_why(error)}") from None

    def __enter__(self) -> Drop:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)

    def names(self, now: float | None = None, wait: Callable[[float], None] = time.sleep) -> list[str]:
        """The files that are whole, the oldest first, at most 200. Where one was written later than `now`, a clock is
        wrong: it is looked at again after a `wait` of two seconds."""
        now = time.time() if now is None else now
        found: list[tuple[int, str]] = []
        ahead: dict[str, Stamp] = {}
        with os.scandir(self._handle) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name.lower().endswith(UNFINISHED):
                    continue
                try:
                    about = entry.stat(follow_symlinks=False)
                except OSError:  # gone meanwhile
                    continue
                if not stat.S_ISREG(about.st_mode) or 0 <= now - about.st_mtime < SETTLED_S:
                    continue
                found.append((about.st_mtime_ns, entry.name))
                if about.st_mtime > now:
                    ahead[entry.name] = _stamp(about)
        if ahead:
            wait(SETTLED_S)
            found = [file for file in found if file[1] not in ahead or self._is_still(file[1], ahead[file[1]])]
        return [name for _, name in sorted(found)[:MOST]]

    def take(self, name: str, options: Mapping[str, Any], *, most: int, most_text: int) -> Taken | None:
        """Read a file: a text or Markdown is one item, JSON as many as it has, and of any other only its name, size
        and type are told. At most `most` bytes, of which `most_text` may be words. None: it is gone, or still changes.
        """
        shown = _printable(name)
        stamp = self._stamp(name)
        try:
            with self._opened(name) as (handle, about):
                stamp = _stamp(about)
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
        """Move the file out of the way; nothing when somebody else has. What has come in its place since it was read
        is left where it is, for the next poll. Raises DropError."""
        folder = FAILED if taken.error else DONE
        try:
            if self._stamp(taken.name) != taken.stamp:
                return
            with _folder(self._handle, folder) as into:
                os.rename(taken.name, _free(into, taken), src_dir_fd=self._handle, dst_dir_fd=into)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DropError(
                f"{_printable(taken.name)} cannot be moved to {folder}/: {_why(error)}; let the worker write there"
            ) from None

    def _stamp(self, name: str) -> Stamp | None:
        try:
            return _stamp(os.stat(name, dir_fd=self._handle, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _is_still(self, name: str, stamp: Stamp) -> bool:
        """Looked at by opening it: of a name alone, a client of a file server may tell what it knows from before."""
        try:
            with self._opened(name) as (_, about):
                return _stamp(about) == stamp
        except FileNotFoundError:
            return False
        except OSError:  # `take` says what it is
            return True

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[Any, os.stat_result]]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=self._handle), "rb") as handle:
            about = os.fstat(handle.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            yield handle, about


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


def _stamp(about: os.stat_result) -> Stamp:
    return about.st_ino, about.st_size, about.st_mtime_ns


@contextmanager
def _folder(parent: int, name: str) -> Iterator[int]:
    """A directory of ours, made when it is not there; a link of that name is none."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o750, dir_fd=parent)
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


def _free(folder: int, taken: Taken) -> str:
    """Its own name, or one beside it: what lies there stays. By its bytes, so that the same file again is one."""
    try:
        os.stat(taken.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return taken.name
    stem, suffix = os.path.splitext(taken.name)
    mark = taken.digest[:12] or str(time.time_ns())
    return f"{stem[: 200 - len(suffix)]}.{mark}{suffix}"


@contextmanager
def _closing(handle: int) -> Iterator[None]:
    """Close it when what follows fails."""
    try:
        yield
    except BaseException:
        os.close(handle)
        raise


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def _printable(name: str) -> str:
    return name.encode(errors="replace").decode() if not name.isascii() else name
