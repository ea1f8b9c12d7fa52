"""What is old goes, and nothing that can still be read, or come once more."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_TOLD = (UNIT + "test_prune_told.py",)

PRUNING = [
    Mutant(
        "pruning: what waits in a digest stays",
        STORE + "publications.py",
        "return past.filter(~Exists(waiting))",
        "return past",
        (UNIT + "test_retention.py",),
    ),
    Mutant(
        "pruning: what a run was asked stays",
        STORE + "prune.py",
        '    return rows.filter(Exists(InboxMessage.objects.filter(run_id=OuterRef("run_id"), id__lt=OuterRef("id"))))',
        "    return rows",
        _TOLD,
    ),
    Mutant(
        "pruning: what the present generation was given stays",
        STORE + "prune.py",
        'run_id__in=run_ids, id__lte=F("run__inbox_from"), created_at__lt',
        "run_id__in=run_ids, created_at__lt",
        _TOLD,
    ),
    Mutant(
        "pruning: messages of live runs by their age",
        STORE + "prune.py",
        'id__lte=F("run__inbox_from"), created_at__lt=clock.after(-older_than_s)',
        'id__lte=F("run__inbox_from")',
        _TOLD,
    ),
    Mutant(
        "pruning: a message whose fan-out is under way stays",
        STORE + "prune.py",
        "~Exists(under_way), ",
        "",
        _TOLD,
    ),
    Mutant(
        "pruning: a message that waits for the same run stays",
        STORE + "prune.py",
        "~Exists(waiting), ",
        "",
        _TOLD,
    ),
    Mutant(
        "pruning: a message that a signal is yet to tell of stays",
        STORE + "prune.py",
        ", ~Exists(unread))",
        ")",
        _TOLD,
    ),
    Mutant(
        "pruning: what is carried for the next generation stays",
        STORE + "prune.py",
        "    rows = rows.exclude(message_id=CARRIED)\n",
        "",
        _TOLD,
    ),
    Mutant(
        "pruning: nobody else's waiting keeps a message",
        STORE + "prune.py",
        '        Q(follow__owner=OuterRef("run__owner")) | Q(follow__owner=None),\n',
        "",
        _TOLD,
    ),
    Mutant(
        "pruning: signals of runs that live on, that are read",
        STORE + "prune.py",
        "consumed_at__lt=clock.after(-older_than_s), woke=True",
        "created_at__lt=clock.after(-older_than_s), woke=True",
        _TOLD,
    ),
    Mutant(
        "pruning: and that have woken",
        STORE + "prune.py",
        "consumed_at__lt=clock.after(-older_than_s), woke=True",
        "consumed_at__lt=clock.after(-older_than_s)",
        _TOLD,
    ),
    Mutant(
        "pruning: a transaction of what is past is bounded",
        STORE + "prune.py",
        'found = list(past.values_list("pk", flat=True)[:ROWS])',
        'found = list(past.values_list("pk", flat=True))',
        _TOLD,
    ),
    Mutant(
        "pruning: messages behind their journals",
        RUNTIME + "prune.py",
        '    "journal": store.journal_rows,\n',
        '    "inbox": store.messages,\n    "journal": store.journal_rows,\n',
        _TOLD,
    ),
    Mutant(
        "pruning: a dry run counts a row once",
        RUNTIME + "prune.py",
        "left = store.not_ended(ids, older_than_s) if dry_run else ids",
        "left = ids",
        _TOLD,
    ),
]
