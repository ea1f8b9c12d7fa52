"""Sign and verify webhooks: HMAC-SHA256 of the body with a shared secret."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

RAVI = "ravi"
GITHUB = "github"
SCHEMES = {RAVI: "X-Ravi-Signature", GITHUB: "X-Hub-Signature-256"}  # each with its header
TOLERANCE_S = 300  # between the sender's clock and ours, in both directions
_AT_ONCE = 5  # signatures of one header: a sender that rotates its secret sends two
_DUMMY = "of nobody"  # used without secrets, so that the check takes the same time


def sign(secret: str, body: bytes, at: int) -> str:
    """The value of `X-Ravi-Signature`: `t=<at>,v1=<hex>`. `at` is the time of sending in seconds since 1970."""
    return f"t={at},v1={_hmac(secret, b'%d.%s' % (at, body))}"


def is_signed(scheme: str, headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: float) -> bool:
    """Whether one of the secrets signed this body. A `ravi` signature must be made within 300 s of `now`; a `github`
    signature has no time. False without secrets, after the same time."""
    header = headers.get(SCHEMES.get(scheme, ""), "")
    at, signatures = _of_github(header) if scheme == GITHUB else _of_ravi(header)
    signed = body
    if scheme != GITHUB:
        if at is None or not abs(now - at) <= TOLERANCE_S:
            return False
        signed = b"%d.%s" % (at, body)
    matches = False
    for secret in secrets or (_DUMMY,):
        expected = _hmac(secret, signed).encode()
        for signature in signatures[:_AT_ONCE]:
            matches |= hmac.compare_digest(expected, signature.encode())
    return matches and bool(secrets)


def signed_at(scheme: str, headers: Mapping[str, str]) -> datetime | None:
    """The time in a signature that `is_signed` has accepted; None for `github`."""
    at = None if scheme == GITHUB else _of_ravi(headers.get(SCHEMES.get(scheme, ""), ""))[0]
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _hmac(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _of_github(header: str) -> tuple[int | None, list[str]]:
    return None, [header.removeprefix("sha256=")] if header.startswith("sha256=") else []


def _of_ravi(header: str) -> tuple[int | None, list[str]]:
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    at = times[0] if len(times) == 1 else ""
    is_time = at.isascii() and at.isdigit() and len(at) <= 12 and at == str(int(at))
    return int(at) if is_time else None, [value for name, _, value in parts if name == "v1"]
