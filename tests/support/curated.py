"""What readers have made of items, without the readers' work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils import timezone

from project import feeds
from ravi_django.models import JournalEntry, Run, Session


def curated(user: Any, titles: Iterable[str], *, agent: str = feeds.READER, **more: Any) -> list[JournalEntry]:
    """Entries of one run that has ended, in their order; `more` is said of each item."""
    now = timezone.now()
    run = Run.objects.create(agent=agent, owner=user, session=Session.objects.create(owner=user), status="completed")
    said = {"topic": "news/science", "summary": "s", "keep": True, "score": 0.5, "reason": "r", **more}
    row = {"run": run, "kind": "log", "name": "feed.curated", "started_at": now, "finished_at": now}
    return JournalEntry.objects.bulk_create(
        JournalEntry(seq=seq, path=str(seq), result={"title": title, **said}, **row)
        for seq, title in enumerate(titles, 1)
    )
