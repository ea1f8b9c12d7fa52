"""The secrets of webhooks: the newest first, at most two, so that a sender can be given another without a gap."""

from __future__ import annotations

from uuid import UUID

from ravi_django.db import transaction
from ravi_django.models import Source

VALID = 2


def secrets_of(source: Source | None) -> list[str]:
    """Of an enabled webhook; nobody else has any."""
    if source is None or source.kind != Source.Kind.WEBHOOK or not source.enabled:
        return []
    return [secret for secret in source.secret.split(",") if secret]


def find_hook(source_id: UUID) -> Source | None:
    found: Source | None = Source.objects.filter(id=source_id).first()
    return found


def add_secret(source_id: UUID, secret: str) -> bool:
    """Put it before the present one, which stays valid; the one before that is not any more. False: no webhook."""
    with transaction.atomic():
        row = _locked(source_id)
        if row is None:
            return False
        kept = [secret, *row.secret.split(",")][:VALID]
        Source.objects.filter(id=row.id).update(secret=",".join(filter(None, kept)))
    return True


def drop_old_secret(source_id: UUID) -> bool:
    """Let the newest alone be valid. False: there was no other."""
    with transaction.atomic():
        row = _locked(source_id)
        if row is None or "," not in row.secret:
            return False
        Source.objects.filter(id=row.id).update(secret=row.secret.split(",")[0])
    return True


def _locked(source_id: UUID) -> Source | None:
    rows = Source.objects.select_for_update(no_key=True, of=("self",)).filter(id=source_id, kind=Source.Kind.WEBHOOK)
    found: Source | None = rows.first()
    return found
