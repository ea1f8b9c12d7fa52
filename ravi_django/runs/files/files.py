"""Store an uploaded file, refer to it from a run, and delete it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.files.base import ContentFile, File
from django.db.models import QuerySet, Sum
from django.db.models.signals import pre_delete

from ravi_django.conf import DEFAULTS, conf
from ravi_django.db import lock_rows, transaction
from ravi_django.engine.db import clock
from ravi_django.kernel import (
    ChatPayload,
    ConflictError,
    InputTooLargeError,
    InvalidInputError,
    Message,
)
from ravi_django.kernel.checks import did_you_mean
from ravi_django.models import RaviFile, Run, Session
from ravi_django.models.files import path_of
from ravi_django.runs.files.contents import KNOWN, fitted, fitted_block, kind_of, type_of


def setting(name: str) -> Any:
    return {**DEFAULTS["FILES"], **conf.FILES}[name]


def setting_errors(options: Any) -> Iterator[str]:
    """Errors in RAVI["FILES"]."""
    if not isinstance(options, Mapping):
        yield f" is {options!r}, not a dict"
        return
    for name, value in options.items():
        if name not in DEFAULTS["FILES"]:
            known = DEFAULTS["FILES"]
            yield f" has an unknown name {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}"
        elif name == "types":
            if not isinstance(value, list | tuple):
                yield f"['types'] is {value!r}, not a list"
            else:
                yield from (f"['types'] has {one!r}; known: {', '.join(KNOWN)}" for one in value if one not in KNOWN)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            yield f"[{name!r}] is {value!r}, not a number above 0"


log = logging.getLogger("ravi.files")

MB = 1024 * 1024
UNUSED_S = 24 * 3600.0  # life of a file that no run refers to
SLICE = 100  # files deleted in one transaction


def connect() -> None:
    """Once per process: files go with their conversations."""
    pre_delete.connect(_deleting_session, sender=Session, dispatch_uid="ravi.files_of_session")


def _deleting_session(sender: Any, instance: Session, **more: Any) -> None:
    if ids := list(instance.files.values_list("id", flat=True)):  # type: ignore[attr-defined]
        rows = RaviFile.objects.filter(id__in=ids)
        lock_rows(rows)  # another conversation may get one
        instance.files.clear()  # type: ignore[attr-defined]
        forget(rows.filter(sessions=None))


def max_bytes() -> int:
    return int(setting("max_mb") * MB)


def upload(user: Any, file: File[bytes]) -> RaviFile:
    """Store a file of `user`, an image in the size that all providers accept. Raises InvalidInputError for other types
    than RAVI["FILES"] allows, InputTooLargeError for a file that is too big or does not fit into the user's space."""
    if (file.size or 0) > max_bytes():
        raise InputTooLargeError(f"a file has at most {setting('max_mb')} MB", field="file")
    content = file.read()
    detected = type_of(content)
    if detected not in setting("types"):
        allowed = ", ".join(setting("types"))
        raise InvalidInputError(f"the content is {detected or 'of no known type'}; allowed: {allowed}", field="file")
    content, media_type, pages = fitted(content, detected)
    row = RaviFile(owner=user, name=file.name or detected, type=media_type, size=len(content), pages=pages)
    row.sha256 = hashlib.sha256(content).hexdigest()
    row.content = path_of(row, row.name)
    with transaction.atomic():
        # Concurrent uploads of the user wait here, so that all of them count.
        lock_rows(get_user_model()._base_manager.filter(pk=user.pk))
        used = RaviFile.objects.filter(owner=user).aggregate(used=Sum("size"))["used"] or 0
        if used + row.size > setting("user_mb") * MB:
            message = f"your files have {used} bytes, and all together at most {setting('user_mb')} MB"
            raise InputTooLargeError(message, field="file")
        row.unused_until = clock.after(UNUSED_S)
        clock.stamp(row).save(force_insert=True)
    this_row = RaviFile.objects.present().filter(id=row.id)
    stored: Any = row.content
    try:
        name = stored.storage.save(stored.name, ContentFile(content))
    except BaseException:
        forget(this_row)
        raise
    if not this_row.update(content=name):
        stored.storage.delete(name)
        raise InvalidInputError("the user was erased during the upload", field="file")
    return row


def resolve(message: Message, owner: Any) -> tuple[Message, list[UUID]]:
    """The message with name, type and size of each file that it names and its inline images scaled, and the ids of the
    files. Raises InvalidInputError for a file that `owner` may not use."""
    payload = message.payload
    if not isinstance(payload, ChatPayload) or not payload.message.has_media:
        return message, []
    rows = rows_of(payload.message.files, owner)
    blocks = [fitted_block(block, conf.MAX_INPUT_BYTES) for block in payload.message.content]
    ids: list[UUID] = []
    for index, block in enumerate(blocks):
        if (name := getattr(block, "file", None)) is None:
            continue
        row = rows.get(name)
        if row is None:
            raise InvalidInputError(f"input.{index}.file: there is no file {name!r:.60} of yours", field="input")
        if block.type != kind_of(row.type):
            detail = f"input.{index}.type is {block.type!r}; the file is {row.type}, which is {kind_of(row.type)!r}"
            raise InvalidInputError(detail, field="input")
        facts = {"file": str(row.id), "name": row.name, "size": row.size, "mime_type": row.type}
        blocks[index] = block.model_copy(update={**facts, "url": None, "data": None})
        ids.append(row.id)
    chat = payload.message.model_copy(update={"content": blocks})
    return message.model_copy(update={"payload": payload.model_copy(update={"message": chat})}), ids


def referring(ids: Sequence[UUID], write: Callable[..., Run | None], *args: Any, **more: Any) -> Run | None:
    """Call `write`, which returns the run that gets the message, and refer to the files from its conversation, in one
    transaction. Raises InvalidInputError for a file that was deleted meanwhile."""
    if not ids:
        return write(*args, **more)
    with transaction.atomic():
        if (run := write(*args, **more)) is not None:
            rows = RaviFile.objects.present().select_for_update(no_key=True).filter(id__in=ids).order_by("id")
            if len(rows) < len(set(ids)):
                raise InvalidInputError("input: a file was deleted; upload it again", field="input")
            rows.update(unused_until=None)
            run.session.files.add(*rows)  # type: ignore[attr-defined]
        return run


def kinds(names: Iterable[str]) -> dict[str, str]:
    """By name, the type of the content block for each file that exists."""
    return {name: kind_of(row.type) for name, row in rows_of(names, None).items()}


def rows_of(names: Iterable[str], owner: Any) -> dict[str, RaviFile]:
    """By name, the files of `owner` and of the runs that they may read; without an owner any files."""
    ids: dict[str, UUID] = {}
    for name in names:
        with suppress(ValueError):
            ids[name] = UUID(name)
    rows = RaviFile.objects.present() if owner is None else RaviFile.objects.for_user(owner)
    by_id = rows.in_bulk(set(ids.values()))
    return {name: by_id[id] for name, id in ids.items() if id in by_id}


def forget(rows: QuerySet[Any]) -> None:
    """In the caller's transaction: from now on nobody can read the files. The sweep deletes them."""
    RaviFile.sessions.through.objects.filter(ravifile__in=rows).delete()
    rows.update(owner=None, unused_until=clock.now())


def discard(row: RaviFile) -> None:
    """Raises ConflictError while a conversation has the file."""
    with transaction.atomic():
        rows = RaviFile.objects.filter(id=row.id)
        lock_rows(rows)  # a message that names it may be written
        if row.sessions.exists():
            raise ConflictError(f"file {row.id} is in a conversation: delete the conversation")
        forget(rows)


def unused() -> QuerySet[RaviFile]:
    """Files that were forgotten, or that no run has referred to within a day of their upload."""
    return RaviFile.objects.filter(unused_until__lte=clock.now())


def delete_unused() -> int:
    """Delete at most SLICE unused files, each content before its row; returns how many. A file stays while a message
    that names it is written, and if its storage fails."""
    with transaction.atomic():  # not open while a storage deletes
        rows = list(unused().select_for_update(skip_locked=True).order_by("unused_until")[:SLICE])
        forget(RaviFile.objects.filter(id__in=[row.id for row in rows]))
    deleted = [row.id for row in rows if _is_deleted(row)]
    gone = RaviFile.objects.filter(id__in=deleted)
    with transaction.atomic():
        lock_rows(gone)
        gone.delete()
    return len(deleted)


def _is_deleted(row: RaviFile) -> bool:
    try:
        row.content.storage.delete(row.content.name or "")
    except Exception:
        log.exception("the content of file %s was not deleted", row.id, extra={"action": "files.undeleted"})
        return False
    return True
