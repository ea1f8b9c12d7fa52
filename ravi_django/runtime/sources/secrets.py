"""Secrets of webhooks, encrypted with keys that are derived from SECRET_KEY and SECRET_KEY_FALLBACKS.

A row holds at most two secrets, the newest first, so that a sender can change its secret without interruption.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from uuid import UUID

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from ravi_django.db import transaction
from ravi_django.models import Source


def seal(text: str) -> str:
    """Encrypt with the key of SECRET_KEY. Returns ASCII without a comma."""
    return _keys().encrypt(text.encode()).decode()


def opened(sealed: str) -> str | None:
    """The text, or None if neither SECRET_KEY nor a fallback decrypts it."""
    try:
        return _keys().decrypt(sealed.encode()).decode()
    except InvalidToken:
        return None


def _keys() -> MultiFernet:
    return _derived((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


@lru_cache(maxsize=4)
def _derived(keys: tuple[str | bytes, ...]) -> MultiFernet:
    return MultiFernet([Fernet(base64.urlsafe_b64encode(_derive(key))) for key in keys])


def _derive(key: str | bytes) -> bytes:
    secret = key if isinstance(key, bytes) else key.encode()
    return HKDF(SHA256(), length=32, salt=None, info=b"ravi_django: secrets in rows").derive(secret)


VALID = 2
CLOSED = "The secret cannot be decrypted: add the old SECRET_KEY to SECRET_KEY_FALLBACKS, or create another secret."
_NOBODYS = base64.urlsafe_b64encode(b"\x80" + bytes(88)).decode()  # the check of an unknown source takes as long


def secrets_of(source: Source | None) -> list[str]:
    """The secrets of an enabled webhook, else none. A secret that cannot be decrypted sets the source's `error`."""
    if source is None or source.kind != Source.Kind.WEBHOOK or not source.enabled or not source.secret:
        opened(_NOBODYS)
        return []
    found = [secret for sealed in source.secret.split(",") if (secret := opened(sealed)) is not None]
    if not found:
        Source.objects.filter(id=source.id).exclude(error=CLOSED).update(error=CLOSED)
    return found


def rekey() -> tuple[int, list[UUID]]:
    """Encrypt every secret with the key of SECRET_KEY. Returns the number of rows, and the ids of those that
    cannot be decrypted: they stay unchanged."""
    written, closed = 0, []
    for source_id in list(Source.objects.exclude(secret="").order_by("id").values_list("id", flat=True)):
        with transaction.atomic():
            row = lock_hook(source_id)
            if row is None:
                continue
            try:
                sealed = [_keys().rotate(part.encode()).decode() for part in row.secret.split(",")]
            except InvalidToken:
                closed.append(source_id)
                continue
            Source.objects.filter(id=source_id).update(secret=",".join(sealed))
            written += 1
    return written, closed


def lock_hook(source_id: UUID) -> Source | None:
    rows = Source.objects.select_for_update(no_key=True, of=("self",))
    return rows.filter(id=source_id, kind=Source.Kind.WEBHOOK).first()
