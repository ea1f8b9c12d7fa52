"""Saves of a site's models as items: noted in the transaction of the save, delivered to agents after it.

A note is a row of its own, so that saves do not wait for each other. The delivery deletes its notes in its own
transaction and reads the saved rows as they are at that time.

A model that RAVI["SOURCE_MODELS"] does not name has no `post_save` receiver, and its saves cost nothing. For a named
model, each process reads its sources at most every 5 seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.exceptions import ValidationError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, connections, models, router
from django.db.models.signals import post_delete, post_save

from ravi_django.capabilities.feeds import Item
from ravi_django.conf import conf
from ravi_django.db import transaction
from ravi_django.kernel.errors import message_of
from ravi_django.kernel.secrets import is_secret
from ravi_django.models import Source, SourceItem
from ravi_django.runtime.db import clock
from ravi_django.runtime.runs import background
from ravi_django.runtime.sources.delivery import BATCH, deliver
from ravi_django.runtime.sources.items import full_sources
from ravi_django.users import permits

log = logging.getLogger("ravi.sources")

KEPT_S = 7 * 86400.0  # for a note that cannot be delivered
DECLARED_S = 5.0  # until a process knows of a source that another process has added
LATE_S = 10.0  # the hint of an older note was lost
AT_ONCE = 20  # sources of one sweep
TASK = "ravi.deliver_saves"
_UID = "ravi.model_sources"

_declared: tuple[float, dict[str, tuple[UUID, ...]]] = (float("-inf"), {})
_connected: set[type[models.Model]] = set()


class Unreadable(Exception):
    """The saved rows cannot be read; the message is for the source's `error`."""


def note_save(source_ids: Iterable[UUID], pk: str, created: bool) -> None:
    """In the saver's transaction, in a savepoint: an error here does not fail the save."""
    present = clock.fixed()
    seen = {} if present is None else {"seen_at": present}
    using = router.db_for_write(SourceItem)
    with transaction.atomic(using=using):
        SourceItem.objects.bulk_create(
            SourceItem(
                source_id=source_id,
                identity=hashlib.sha256(secrets.token_bytes(32)).hexdigest(),
                undelivered={"pk": pk, "created": created},
                **seen,
            )
            for source_id in _kept(source_ids, using)
        )


def _kept(source_ids: Iterable[UUID], using: str) -> list[UUID]:
    """Lock the sources until the saver has committed: the commit would fail if a note's source were deleted by then. A
    source that is being deleted is left out."""
    ids = list(source_ids)
    if connections[using].vendor != "postgresql":  # the writer is alone
        return list(Source.objects.using(using).filter(id__in=ids, enabled=True).values_list("id", flat=True))
    with connections[using].cursor() as cursor:
        cursor.execute(_KEEP, [ids])
        return [row[0] for row in cursor.fetchall()]


_KEEP = f"SELECT id FROM {Source._meta.db_table} WHERE id = ANY(%s) AND enabled ORDER BY id FOR KEY SHARE SKIP LOCKED"  # noqa: S608


def with_undelivered(older_than_s: float, limit: int) -> list[UUID]:
    """Enabled sources with a note that is older, without those whose run has too much unread. Of too many sources a
    random choice, so that those that fail cannot block the others."""
    rows = SourceItem.objects.filter(undelivered__isnull=False, seen_at__lt=clock.after(-older_than_s))
    late = Source.objects.filter(id__in=rows.values("source_id"), enabled=True).order_by("?")
    found = list(late.values_list("id", flat=True)[: 10 * limit])
    full = full_sources(found)
    return [source_id for source_id in found if source_id not in full][:limit]


def deliver_saves(source_id: UUID) -> int:
    """Deliver a batch of notes and delete them, in one transaction and under the source's lock. Returns their number; 0
    when there are none, or when they cannot be delivered: then they are kept for a week."""
    with transaction.atomic():
        locked = Source.objects.select_for_update(no_key=True, of=("self",)).select_related("owner")
        source = locked.filter(id=source_id, enabled=True).first()
        if source is None:
            return 0
        notes = list(SourceItem.objects.filter(source=source, undelivered__isnull=False).order_by("id")[:BATCH])
        if not notes:
            return 0
        try:
            is_delivered = not deliver(source, _read(source, notes)).error
        except Unreadable as refusal:
            record_result(source.id, f"{refusal}; saves are kept for 7 days")
            is_delivered = False
        if not is_delivered:
            SourceItem.objects.filter(
                source=source, undelivered__isnull=False, seen_at__lt=clock.after(-KEPT_S)
            ).delete()
            return 0
        SourceItem.objects.filter(id__in=[note.id for note in notes]).delete()
        record_result(source.id)
    return len(notes)


def record_result(source_id: UUID, error: str = "") -> None:
    """Write the result of a source that is not polled."""
    Source.objects.filter(id=source_id).update(checked_at=clock.now(), error=error, failures=int(bool(error)))


def named_models() -> dict[str, type[models.Model]]:
    """The models that RAVI["SOURCE_MODELS"] names, by `app.model` in lower case, without those that do not exist."""
    names = conf.SOURCE_MODELS if isinstance(conf.SOURCE_MODELS, list | tuple) else ()
    return {model._meta.label_lower: model for name in names for model in _models_of(name)}


def faults() -> Iterator[str]:
    """The faults of RAVI["SOURCE_MODELS"]."""
    if not isinstance(conf.SOURCE_MODELS, list | tuple):
        yield f" is {conf.SOURCE_MODELS!r}, not a list"
        return
    for name in conf.SOURCE_MODELS:
        if not _models_of(name):
            yield f" names {name!r}: no installed model or app, or one that cannot be a source"


def field_faults(model: type[models.Model], names: Any) -> Iterator[str]:
    """The faults of the option `fields` for this model."""
    if names is None:
        return
    if not isinstance(names, list):
        yield f'fields must be a list of names like ["status"], not {names!r}'
        return
    there = {field.name: field for field in _fields_of(model)}
    for name in names:
        if name not in there:
            known = ", ".join(there)
            yield f"{model._meta.label} has no field {name!r} for sources; the fields are: {known}"


def _models_of(name: Any) -> list[type[models.Model]]:
    """The model `app.Model`, or all of an app. Not those of this app: a delivery writes their rows."""
    try:
        app, _, model = name.partition(".")
        found = [apps.get_model(app, model)] if model else list(apps.get_app_config(app).get_models())
    except (AttributeError, LookupError, TypeError, ValueError):
        return []
    return [one for one in found if one._meta.app_label != "ravi" and len(getattr(one._meta, "pk_fields", ())) < 2]


def _fields_of(model: type[models.Model]) -> list[models.Field[Any, Any]]:
    """The columns that are not named like a key or a password."""
    return [field for field in model._meta.concrete_fields if not is_secret(field.name)]


def connect(**kwargs: Any) -> None:
    """Receive the saves of the named models only; called again when the settings change."""
    if kwargs.get("setting", "RAVI") not in ("RAVI", "INSTALLED_APPS"):
        return
    for model in list(_connected):
        post_save.disconnect(sender=model, dispatch_uid=_UID)
        _connected.discard(model)
    named = set(named_models().values())
    if not named:
        return
    for model in apps.get_models():
        if model._meta.concrete_model in named:  # also saves through a proxy
            post_save.connect(_on_save, sender=model, dispatch_uid=_UID)
            _connected.add(model)
    for signal in (post_save, post_delete):
        signal.connect(_forget, sender=Source, dispatch_uid=_UID)


def _on_save(sender: Any, instance: Any, created: bool, raw: bool, using: str, **kwargs: Any) -> None:
    if raw:  # loaddata: the rows around it may not be there yet
        return
    wanted = _sources_of(sender._meta.concrete_model._meta.label_lower)
    if not wanted:
        return
    note = partial(_note, wanted, str(instance.pk), created)
    if using == router.db_for_write(SourceItem):
        note()
    else:  # another database's transaction: two cannot commit as one
        transaction.on_commit(note, using=using, robust=True)


def _sources_of(label: str) -> tuple[UUID, ...]:
    """The enabled sources of a model."""
    global _declared
    until, known = _declared
    if time.monotonic() >= until:
        try:
            with transaction.atomic(using=router.db_for_read(Source)):
                rows = Source.objects.filter(kind=Source.Kind.MODEL, enabled=True).order_by("id")
                known = {}
                for source_id, location in rows.values_list("id", "location"):
                    known[location.lower()] = (*known.get(location.lower(), ()), source_id)
        except DatabaseError as error:  # the app's tables are not there yet
            log.warning("cannot read the sources of models: %s", error, extra={"action": "saves.unknown"})
        _declared = (time.monotonic() + DECLARED_S, known)
    return known.get(label, ())


def _forget(**kwargs: Any) -> None:
    global _declared
    _declared = (float("-inf"), {})


def _note(source_ids: tuple[UUID, ...], pk: str, created: bool) -> None:
    try:
        note_save(source_ids, pk, created)
    except Exception:  # the site's own save must not fail
        log.exception("a save of %s was not noted", pk, extra={"action": "saves.not_noted"})
        _forget()
        return
    for source_id in source_ids:
        _hint(source_id)


def _hint(source_id: UUID) -> None:
    """At most one hint per transaction, however many rows it saves."""
    connection = connections[router.db_for_write(SourceItem)]
    hint = _Hint(source_id)
    if not any(function == hint for _, function, *_ in connection.run_on_commit):
        transaction.on_commit(hint, using=connection.alias, robust=True)


@dataclass(frozen=True)
class _Hint:
    source_id: UUID

    def __call__(self) -> None:
        background.hint(TASK, str(self.source_id))


def run(source_id: UUID | str) -> int:
    """Deliver all saves of a source that wait. Returns their number."""
    delivered = 0
    while found := deliver_saves(UUID(str(source_id))):
        delivered += found
    return delivered


def sweep() -> int:
    """Repeat lost hints. Returns the number of sources."""
    late = with_undelivered(LATE_S, AT_ONCE)
    for source_id in late:
        background.hint(TASK, str(source_id))
    return len(late)


def _read(source: Source, notes: Sequence[SourceItem]) -> list[Item]:
    """One item for each row that was saved, as it is now, however often it was saved."""
    model = named_models().get(source.location.lower())
    if model is None:
        raise Unreadable(f"RAVI['SOURCE_MODELS'] does not name {source.location}; add it, or choose another model")
    if source.owner is not None and not permits(source.owner, permission_of(model)):
        raise Unreadable(f"the owner, {source.owner}, may not see {model._meta.label}: {permission_of(model)}")
    saves: dict[str, tuple[bool, int]] = {}
    for note in notes:
        undelivered = note.undelivered or {}
        was_created = saves.get(undelivered["pk"], (False, 0))[0]
        saves[undelivered["pk"]] = (was_created or bool(undelivered["created"]), note.id)
    names = source.options.get("fields")
    chosen = [field for field in _fields_of(model) if isinstance(names, list) and field.name in names]
    try:
        with transaction.atomic():  # a query of the site's own `__str__` may fail
            return [_item(row, chosen, *saves[str(row.pk)]) for row in _rows(model, saves)]
    except Exception as error:
        log.warning("source %s: reading one by one: %s", source.id, error, extra={"action": "saves.one_by_one"})
    return [_item_or_less(row, chosen, *saves[str(row.pk)]) for row in _rows(model, saves)]


def permission_of(model: type[models.Model]) -> str:
    """The source's owner needs it."""
    return f"{model._meta.app_label}.view_{model._meta.model_name}"


def _rows(model: type[models.Model], saves: dict[str, Any]) -> list[Any]:
    """Those that still exist, in the order of their last save."""
    pks = []
    for pk in saves:
        try:
            pks.append(model._meta.pk.to_python(pk))
        except ValidationError:
            continue
    rows = model._base_manager.filter(pk__in=pks)
    return sorted((row for row in rows if str(row.pk) in saves), key=lambda row: int(saves[str(row.pk)][1]))


def _item(row: Any, fields: Sequence[models.Field[Any, Any]], created: bool, save: int) -> Item:
    label = row._meta.label
    values = {field.name: field.value_from_object(row) for field in fields}
    about = {"model": label, "pk": row.pk, "created": created, "fields": values, "save": save}
    return Item(id=f"{label}:{row.pk}", title=str(row), extra=json.loads(json.dumps(about, cls=_Encoder)))


def _item_or_less(row: Any, fields: Sequence[models.Field[Any, Any]], created: bool, save: int) -> Item:
    try:
        with transaction.atomic():
            return _item(row, fields, created, save)
    except Exception as error:
        about = {"model": row._meta.label, "pk": str(row.pk), "created": created, "save": save}
        return Item(id=f"{row._meta.label}:{row.pk}", extra={**about, "unreadable": message_of(error)[:500]})


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return str(o)
