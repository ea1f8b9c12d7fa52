"""The page of one journal entry. Entries are listed on the page of their run."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext

from ravi_django.admin import timeline
from ravi_django.admin.base import InspectAdmin
from ravi_django.models import Blob, JournalEntry
from ravi_django.pages import show
from ravi_django.runtime.journal.entries import blob_value, internalize


@admin.register(JournalEntry)
class JournalEntryAdmin(InspectAdmin):
    tenant = "run__tenant"
    in_index = False
    change_form_template = "ravi/admin/entry.html"
    list_select_related = ["run"]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Users who may see runs see their entries."""
        return request.user.has_perm("ravi.view_run") or request.user.has_perm("ravi.change_run")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return redirect("admin:ravi_run_changelist")

    def inspect(self, request: HttpRequest, entry: JournalEntry) -> dict[str, Any]:
        internalize([entry])
        neighbours = JournalEntry.objects.filter(run=entry.run_id, seq__in=[entry.seq - 1, entry.seq + 1])
        beside = dict(neighbours.values_list("seq", "pk"))
        bodies = [("request", entry.request), ("result", entry.result), ("error", entry.error)]
        said = {"number": entry.seq, "kind": entry.kind, "name": entry.name}
        return {
            "title": gettext("Entry %(number)s: %(kind)s %(name)s") % said,
            "entry": entry,
            "line": timeline.lines([entry])[0],
            "bodies": [(name, show.pretty(value, None)) for name, value in bodies if value is not None],
            "seen": _seen(entry),
            "previous": beside.get(entry.seq - 1),
            "next": beside.get(entry.seq + 1),
        }


def _seen(entry: JournalEntry) -> list[tuple[str, str, dict[str, Any] | None]]:
    """The components that the call was made with: name, digest, and body if it is stored."""
    digests = {name: str(digest) for name, digest in (entry.digests or {}).items()}
    kept = {blob.id: blob for blob in Blob.objects.filter(id__in=digests.values(), encoding__startswith="json")}
    return [
        (name, digest, show.pretty(_body(blob_value(kept[digest])), None) if digest in kept else None)
        for name, digest in sorted(digests.items())
    ]


def _body(value: Any) -> Any:
    """A message of texts as one text."""
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list) and all(isinstance(block, dict) and block.get("type") == "text" for block in content):
        return "\n".join(block["text"] for block in content)
    return value
