"""Encrypt texts in rows, with keys that are derived from SECRET_KEY and SECRET_KEY_FALLBACKS."""

from __future__ import annotations

import base64
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


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
