"""Saves of a site's models that sources wait for: noted in the saver's transaction, reported to agents after it.

A note is a row of its own: savers do not wait for each other. A report deletes its notes in the same transaction and
reads the rows as they are then.

A model that RAVI["SOURCE_MODELS"] does not name has no `post_save` receiver, and its saves cost nothing. For a named
model each process asks at most every 5 seconds which sources there are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from ravi_django.kernel.secrets import is_secret
from ravi_django.models import Source, SourceItem
from ravi_django.runtime.db import clock
from ravi_django.runtime.runs import background
from ravi_django.runtime.sources.telling import BATCH, tell
from ravi_django.runtime.sources.unread import full_sources
from ravi_django.users import permits

Read = Callable[[Source, Sequence[SourceItem]], Sequence[Item]]


KEPT_S = 7 * 86400.0  # that a save is kept for, while nobody can be told of it


class Unreadable(Exception):
    """What was saved cannot be told of as things are; the words are for the source's `error`."""


def declared_models() -> dict[str, tuple[UUID, ...]]:
    """The enabled sources of each model, by `app.model` in small letters."""
    found: dict[str, tuple[UUID, ...]] = {}
    rows = Source.objects.filter(kind=Source.Kind.MODEL, enabled=True).order_by("id")
    for source_id, location in rows.values_list("id", "location"):
        found[location.lower()] = (*found.get(location.lower(), ()), source_id)
    return found


def note_save(source_ids: Iterable[UUID], pk: str, created: bool) -> None:
    """In the saver's transaction, and a savepoint of ours in it: what fails here fails no save."""
    present, untold = clock.fixed(), {"pk": pk, "created": created}
    using = router.db_for_write(SourceItem)
    with transaction.atomic(using=using):
        rows = [
            SourceItem(source_id=source_id, identity=_nobody_elses(), untold=untold)
            for source_id in _kept(source_ids, using)
        ]
        if present is not None:
            for row in rows:
                row.seen_at = present
        SourceItem.objects.bulk_create(rows)


def _nobody_elses() -> str:
    return hashlib.sha256(secrets.token_bytes(32)).hexdigest()


def _kept(source_ids: Iterable[UUID], using: str) -> list[UUID]:
    """Those that are there now, and stay until the saver has committed: the database looks at a note's source at the
    commit, which would fail if it were gone by then. One that is being deleted is left out, and not waited for."""
    ids = list(source_ids)
    if connections[using].vendor != "postgresql":  # the writer is alone
        return list(Source.objects.using(using).filter(id__in=ids, enabled=True).values_list("id", flat=True))
    with connections[using].cursor() as cursor:
        cursor.execute(_KEEP, [ids])
        return [row[0] for row in cursor.fetchall()]


_KEEP = f"SELECT id FROM {Source._meta.db_table} WHERE id = ANY(%s) AND enabled ORDER BY id FOR KEY SHARE SKIP LOCKED"  # noqa: S608


def with_untold(older_than_s: float, limit: int) -> list[UUID]:
    """Enabled sources with a note that is older: whoever was to tell of it is gone. Not those that take no more now;
    and which of too many is left to chance, so that those of which nobody can be told keep nobody else out."""
    rows = SourceItem.objects.filter(untold__isnull=False, seen_at__lt=clock.after(-older_than_s))
    late = Source.objects.filter(id__in=rows.values("source_id"), enabled=True).order_by("?")
    found = list(late.values_list("id", flat=True)[: 10 * limit])
    full = full_sources(found) if found else set()
    return [source_id for source_id in found if source_id not in full][:limit]


def tell_saves(source_id: UUID, read: Read) -> int:
    """Tell of a batch of notes, and take them away, in one transaction; `read` makes the items of them, under the
    source's lock: of two at once the later one's are the newer. Returns how many were told; 0 when there are none, or
    when nobody can be told now. They are kept for a week then, for somebody to fix it."""
    with transaction.atomic():
        locked = Source.objects.select_for_update(no_key=True, of=("self",)).select_related("owner")
        source = locked.filter(id=source_id, enabled=True).first()
        if source is None:
            return 0
        notes = list(SourceItem.objects.filter(source=source, untold__isnull=False).order_by("id")[:BATCH])
        if not notes:
            return 0
        try:
            told = tell(source, read(source, notes))
        except Unreadable as refusal:
            heard(source.id, f"{refusal}; what is saved meanwhile is kept for 7 days")
            _drop_old(source)
            return 0
        if told.error:
            _drop_old(source)
            return 0
        SourceItem.objects.filter(id__in=[note.id for note in notes]).delete()
        heard(source.id)
    return len(notes)


def _drop_old(source: Source) -> None:
    SourceItem.objects.filter(source=source, untold__isnull=False, seen_at__lt=clock.after(-KEPT_S)).delete()


def heard(source_id: UUID, error: str = "") -> None:
    """Something came, at a source that is not polled."""
    Source.objects.filter(id=source_id).update(checked_at=clock.now(), error=error, failures=int(bool(error)))


log = logging.getLogger("ravi.sources")

DECLARED_S = 5.0  # for so long a process may not have heard of a source that was added elsewhere
LATE_S = 10.0  # a note that is older was lost sight of
AT_ONCE = 20  # sources of one sweep

_UID = "ravi.model_sources"
TASK = "ravi.tell_saves"

_declared: tuple[float, dict[str, tuple[UUID, ...]]] = (float("-inf"), {})
_connected: set[type[models.Model]] = set()


# ------------------------------------------------------------------------------------------------- what may be told


def named_models() -> dict[str, type[models.Model]]:
    """The models that RAVI["SOURCE_MODELS"] names, by `app.model` in small letters; what is not there is left out."""
    found: dict[str, type[models.Model]] = {}
    for name in _names():
        for model in _models_of(name):
            found[model._meta.label_lower] = model
    return found


def faults() -> Iterator[str]:
    """What is wrong with RAVI["SOURCE_MODELS"], in words that name the place."""
    if not isinstance(conf.SOURCE_MODELS, list | tuple):
        yield f" is {conf.SOURCE_MODELS!r}, not a list"
        return
    for name in conf.SOURCE_MODELS:
        if not isinstance(name, str) or not list(_models_of(name)):
            yield f" names {name!r}, which is no model of an installed app that can be told of"


def field_faults(model: type[models.Model], names: Any) -> Iterator[str]:
    """What is wrong with the option `fields` for this model."""
    if names is None:
        return
    if not isinstance(names, list):
        yield f'fields must be a list of names like ["status"], not {names!r}'
        return
    there = {field.name: field for field in _fields_of(model)}
    for name in names:
        if name not in there:
            known = ", ".join(there)
            yield f"{model._meta.label} has no field {name!r} that can be told of; there are: {known}"


def _names() -> list[str]:
    given = conf.SOURCE_MODELS
    return [name for name in given if isinstance(name, str)] if isinstance(given, list | tuple) else []


def _models_of(name: str) -> list[type[models.Model]]:
    """Of `app.Model`, or of an app all. Not the app's own: what tells of its rows would write more of them."""
    app, _, model = name.partition(".")
    try:
        found = [apps.get_model(app, model)] if model else list(apps.get_app_config(app).get_models())
    except (LookupError, ValueError):
        return []
    return [model for model in found if model._meta.app_label != "ravi" and not _is_composite(model)]


def _is_composite(model: type[models.Model]) -> bool:
    return len(getattr(model._meta, "pk_fields", ())) > 1


def _fields_of(model: type[models.Model]) -> list[models.Field[Any, Any]]:
    """Columns, but those that go by the name of a key or a password."""
    return [field for field in model._meta.concrete_fields if not is_secret(field.name)]


# ------------------------------------------------------------------------------------------------------ the receiver


def connect(**kwargs: Any) -> None:
    """Have the named models' saves looked at, and no others; again when the settings change."""
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
    global _declared
    until, known = _declared
    if time.monotonic() >= until:
        try:
            with transaction.atomic(using=router.db_for_read(Source)):
                known = declared_models()
        except DatabaseError as error:  # the app's tables are not there yet
            log.warning("which models sources wait for is not known: %s", error, extra={"action": "saves.unknown"})
        _declared = (time.monotonic() + DECLARED_S, known)
    return known.get(label, ())


def _forget(**kwargs: Any) -> None:
    global _declared
    _declared = (float("-inf"), {})


def _note(source_ids: tuple[UUID, ...], pk: str, created: bool) -> None:
    try:
        note_save(source_ids, pk, created)
    except Exception:  # whatever it is, the site's own save is not to fail by it
        log.exception("a save of %s was not noted", pk, extra={"action": "saves.not_noted"})
        _forget()
        return
    for source_id in source_ids:
        _hint(source_id)


def _hint(source_id: UUID) -> None:
    """One a transaction is enough, however many rows it saves."""
    connection = connections[router.db_for_write(SourceItem)]
    waiting = (function for _, function, *_ in connection.run_on_commit)
    if not any(isinstance(function, _Hint) and function.source_id == source_id for function in waiting):
        transaction.on_commit(_Hint(source_id), using=connection.alias, robust=True)


class _Hint:
    def __init__(self, source_id: UUID) -> None:
        self.source_id = source_id

    def __call__(self) -> None:
        background.hint(TASK, str(self.source_id))


# ---------------------------------------------------------------------------------------------------------- telling


def run(source_id: UUID | str) -> int:
    """Tell of all saves that a source has waiting. Returns how many there were."""
    told = 0
    while found := tell_saves(UUID(str(source_id)), _read):
        told += found
    return told


def sweep() -> int:
    """Hint what hints have been lost of. Returns how many sources that was."""
    late = with_untold(LATE_S, AT_ONCE)
    for source_id in late:
        background.hint(TASK, str(source_id))
    return len(late)


def _read(source: Source, notes: Sequence[SourceItem]) -> list[Item]:
    """An item for each row that was saved, as it is now; of one that was saved more than once, one item."""
    model = named_models().get(source.location.lower())
    if model is None:
        raise Unreadable(f"RAVI['SOURCE_MODELS'] names no model {source.location}; name it there, or another here")
    if source.owner is not None and not permits(source.owner, permission_of(model)):
        raise Unreadable(f"the owner, {source.owner}, may not see {model._meta.label}: {permission_of(model)}")
    saves: dict[str, tuple[bool, int]] = {}
    for note in notes:
        said = note.untold or {}
        was = saves.get(said["pk"], (False, 0))[0]
        saves[said["pk"]] = (was or bool(said["created"]), note.id)
    names = source.options.get("fields")
    chosen = [field for field in _fields_of(model) if isinstance(names, list) and field.name in names]
    try:
        with transaction.atomic():  # a query of the site's own `__str__` may fail
            return [_item(row, chosen, *saves[str(row.pk)]) for row in _rows(model, saves)]
    except Exception as error:
        log.warning("source %s: read one by one: %s", source.id, error, extra={"action": "saves.one_by_one"})
    return [_item_or_less(row, chosen, *saves[str(row.pk)]) for row in _rows(model, saves)]


def permission_of(model: type[models.Model]) -> str:
    """Without it nobody's agent is told of the model's rows."""
    return f"{model._meta.app_label}.view_{model._meta.model_name}"


def _rows(model: type[models.Model], saves: dict[str, Any]) -> list[Any]:
    """Those that are still there, in the order in which they were saved last."""
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
        return Item(id=f"{row._meta.label}:{row.pk}", extra={**about, "unreadable": str(error)[:500]})


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return str(o)
