"""The audit log's one write. Append-only: what is there already stands."""

from __future__ import annotations

from ravi_django.models import AuditRecord
from ravi_django.runtime import clock


def write_audit(*records: AuditRecord) -> None:
    """Once, whatever crashes: a record of the same key is there already, and stays as it is."""
    AuditRecord.objects.bulk_create([clock.stamp(record) for record in records], ignore_conflicts=True)
