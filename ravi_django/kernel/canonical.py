"""One byte string and one digest for equal JSON values."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str).encode


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8; values that are not JSON become text."""
    return _encode(value).encode(errors="surrogatepass")


def digest_of(value: Any) -> str:
    """128 bits of SHA-256 over the canonical form, as hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:32]
