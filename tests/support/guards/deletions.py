"""What is written for a run that is deleted goes with it; migrations beside writers."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_DELETED = (UNIT + "test_owner_deleted.py",)
_DISOWNED = (UNIT + "test_owner_deleted.py",)
_ERASED = (UNIT + "test_erasing.py",)
_NAMES = (UNIT + "test_erased_names.py",)
_RETAINED = (UNIT + "test_retention.py",)
_SESSIONS = ("tests/acceptance/api/test_api_conversations.py",)
_LIVE = "ravi_django/migrations/_live.py"
_MIGRATED = ("tests/unit/models/test_live_migrations.py",)
_SCHEMA = ("tests/unit/models/test_migrated_schema.py",)

DELETIONS = [
    Mutant(
        "deletion: the run is locked before its rows go",
        RUNTIME + "deleted_runs.py",
        "    store.lock_to_delete(instance.id)\n",
        "    pass\n",
        _DELETED,
    ),
    Mutant(
        "deletion: against those who hold the run without changing it",
        STORE + "touching.py",
        "    list(Run.objects.select_for_update().filter(id=run_id).values_list(",
        "    list(Run.objects.select_for_update(no_key=True).filter(id=run_id).values_list(",
        _DELETED,
    ),
    Mutant(
        "deletion: a signal of a caller's transaction holds its run",
        STORE + "touching.py",
        "WHERE id = %s::uuid FOR KEY SHARE",
        "WHERE id = %s::uuid",
        _DELETED,
    ),
    Mutant(
        "deletion: the mark of a deleted owner's run stays, whoever cancels it once more",
        STORE + "endings.py",
        "OWNER_DELETED if run.cancel_reason == OWNER_DELETED else reason",
        "reason",
        _DISOWNED,
    ),
    Mutant(
        "migration: what an interrupted build has left is dropped",
        _LIVE,
        "        _drop(schema_editor, name)\n",
        "        return\n",
        _MIGRATED,
    ),
    Mutant(
        "migration: what is not valid does not stand",
        _LIVE,
        "        if valid and same and",
        "        if same and",
        _MIGRATED,
    ),
    Mutant(
        "migration: what stands is left alone",
        _LIVE,
        "            return\n        _drop(schema_editor, name)\n",
        "            pass\n        _drop(schema_editor, name)\n",
        _MIGRATED,
    ),
    Mutant(
        "migration: an index goes without its foreign key",
        _LIVE,
        '        if schema_editor.connection.vendor != "postgresql":\n            super()',
        "        if True:\n            super()",
        _MIGRATED,
    ),
    Mutant(
        "migration: what a field points to is locked first",
        _LIVE,
        "[*tables, model._meta.db_table]",
        "[model._meta.db_table, *tables]",
        _MIGRATED,
    ),
    Mutant(
        "migration: an index with a name of its own is no field's",
        _LIVE,
        "type_=Index.suffix, exclude=named\n",
        "type_=Index.suffix\n",
        _SCHEMA,
    ),
    Mutant(
        "migration: tables of another database are not locked",
        _LIVE,
        "        if not self.allow_migrate_model(connection.alias, model):\n            return\n        for attempt",
        "        for attempt",
        _SCHEMA,
    ),
    Mutant(
        "migration: an index of another database is not looked for",
        _LIVE,
        "        elif self.allow_migrate_model(schema_editor.connection.alias, model):\n",
        "        else:\n",
        _SCHEMA,
    ),
    Mutant(
        "migration: whoever waits behind it is let go",
        _LIVE,
        "schema_editor.execute(f\"SET LOCAL lock_timeout = '{LOCK_S}s'\")",
        "pass",
        _MIGRATED,
    ),
    Mutant(
        "erasure: a deleted user's sessions are marked",
        RUNTIME + "owners.py",
        "    erasing.user_deleted(instance)\n",
        "",
        _ERASED,
    ),
    Mutant(
        "erasure: a tree with a live root waits",
        STORE + "erasures.py",
        "Run.objects.filter(id__in=roots, status__in=TERMINAL)",
        "Run.objects.filter(id__in=roots)",
        _ERASED,
    ),
    Mutant(
        "erasure: a body that another row names stays",
        STORE + "erasures.py",
        "    left = prune.without_referenced(set(ids))",
        "    left = set(ids)",
        _ERASED,
    ),
    Mutant(
        "erasure: a body that was stored again stays",
        STORE + "postgres.py",
        ", erase_at = NULL",
        "",
        _ERASED,
    ),
    Mutant(
        "erasure: the journal of a live run stays",
        STORE + "names.py",
        "over = [id for id, is_over in ended.items() if is_over]",
        "over = list(ended)",
        _NAMES,
    ),
    Mutant(
        "erasure: the journal of a run that has ended since the pass is rewritten",
        STORE + "names.py",
        "        if position or runs:\n",
        "        if position:\n",
        _NAMES,
    ),
    Mutant(
        "erasure: the stream of a request has no names",
        RUNTIME + "frames.py",
        '    return "request", nameless(asked)\n',
        '    return "request", asked\n',
        _NAMES,
    ),
    Mutant(
        "erasure: a later user of the name keeps it",
        STORE + "names.py",
        "if getattr(row, table.written) > name.until:",
        "if False:",
        _ERASED,
    ),
    Mutant(
        "erasure: what a user makes behind it stays",
        STORE + "personal.py",
        " if self.made and scope.until else rows",
        " if False else rows",
        _ERASED,
    ),
    Mutant(
        "erasure: a session with a live run stays",
        STORE + "erasures.py",
        "    if live is not None:",
        "    if False:",
        _SESSIONS,
    ),
    Mutant(
        "erasure: one sweep does a part of a big session",
        STORE + "erasures.py",
        "    runs = runs[: int(min(most, len(runs)))]\n",
        "",
        _ERASED,
    ),
    Mutant(
        "erasure: the runs of a marked session are hidden",
        "ravi_django/models/run.py",
        ".exclude(session__in=Session.objects.filter(erasure__isnull=False))",
        "",
        _SESSIONS,
    ),
    Mutant(
        "erasure: no run comes into a marked session",
        STORE + "queue.py",
        " AND erasure_id IS NULL FOR NO KEY",
        " FOR NO KEY",
        _SESSIONS,
    ),
    Mutant(
        "retention: a failed run keeps its requests",
        STORE + "retention.py",
        "run__status__in=(Status.COMPLETED, Status.CANCELLED)",
        "run__status__in=TERMINAL",
        _RETAINED,
    ),
    Mutant(
        "retention: a number does not delete what people have said",
        RUNTIME + "prune.py",
        "dict.fromkeys(KINDS, given)",
        "dict.fromkeys((*KINDS, *NAMED), given)",
        _RETAINED,
    ),
]
