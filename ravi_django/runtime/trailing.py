"""The last frames of a tree's other runs, which a run that ends makes again from their rows.

What is below it is cancelled in its own transaction, where nobody else would tell of that. And behind the end of the
root nothing is taken any more: what another process has recorded of a child, and not sent yet, has to be out before.
The buffer drops the second copy of each.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from ravi_django.models import JournalEntry, Run
from ravi_django.runtime import frames as framing
from ravi_django.runtime.entries import internalize
from ravi_django.runtime.frames import Frame, Source
from ravi_django.runtime.publish import _Row

UNSENT = timedelta(seconds=3)  # longer than a process holds frames back while the buffer takes them
CLOCKS = timedelta(seconds=1)  # between this process and the database


def ended_with(run: Run, at: datetime) -> list[Frame]:
    """Of the runs that have ended with `run`, which ended at about `at`; of a root, all that may not be out yet."""
    rows = JournalEntry.objects.filter(run__root_id=run.tree_id).exclude(run_id=run.id)
    if run.parent_id is None:
        rows = rows.filter(finished_at__gte=at - UNSENT)
    else:
        rows = rows.filter(finished_at__gte=at - CLOCKS, kind="run.cancelled", run__finished_at__isnull=False)
    entries = list(rows.order_by("finished_at", "seq").select_related("run"))
    internalize(entries)
    sources: dict[UUID, Source] = {entry.run_id: Source.of(entry.run) for entry in entries}
    whose = zip(framing.authors(entries, sources), entries, strict=True)
    return [frame for source, entry in whose for frame in framing.durable(source, _Row(entry), entry.seq)]
