"""Who may bring a webhook source something: whoever signs with its secret, about now."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from ravi_django.capabilities.feeds.signatures import TOLERANCE_S, is_signed, sign
from tests.support import world

NOW = 1_790_000_000
BODY = b'{"id": 7}'


def signed(header: str, *, secrets: tuple[str, ...] = ("new", "old"), body: bytes = BODY, now: float = NOW) -> bool:
    return is_signed("ravi", {"X-Ravi-Signature": header}, body, secrets, now)


def by_github(header: str, *, secrets: tuple[str, ...] = ("new", "old"), body: bytes = BODY) -> bool:
    return is_signed("github", {"X-Hub-Signature-256": header}, body, secrets, NOW)


def test_it_is_the_hmac_of_time_and_body():
    expected = hmac.new(b"new", b'1790000000.{"id": 7}', hashlib.sha256).hexdigest()

    assert sign("new", BODY, NOW) == f"t=1790000000,v1={expected}"


@pytest.mark.parametrize("secret", ["new", "old"])
def test_both_secrets_are_valid(secret):
    assert signed(sign(secret, BODY, NOW))
    assert by_github("sha256=" + hmac.new(secret.encode(), BODY, hashlib.sha256).hexdigest())


@pytest.mark.parametrize("away", [0, TOLERANCE_S, -TOLERANCE_S])
def test_within_the_tolerance_it_holds(away):
    assert signed(sign("new", BODY, NOW), now=NOW + away)


@pytest.mark.parametrize("away", [TOLERANCE_S + 1, -TOLERANCE_S - 1])
def test_beyond_the_tolerance_it_does_not(away):
    assert not signed(sign("new", BODY, NOW), now=NOW + away)


@pytest.mark.parametrize(
    "header",
    [
        *("", "t=1790000000", "v1=", "t=1790000000,v1=", "t=,v1=ab", "nonsense", "t=1790000000,v1=ü", "=,=,="),
        sign("other", BODY, NOW),
        sign("new", b"{}", NOW),
        sign("new", BODY, NOW).replace("t=1790000000", "t=1790000001"),
        sign("new", BODY, NOW).replace("t=", "t=0"),
        "t=1790000000," + sign("new", BODY, NOW),
        "t=" + "9" * 30 + ",v1=ab",
        "t=-5,v1=ab",
        "t=١٧٩,v1=ab",
        hmac.new(b"new", BODY, hashlib.sha256).hexdigest(),
        f"t={NOW},v1=a,v1=b,v1=c,v1=d,v1=e," + sign("new", BODY, NOW).partition(",")[2],
    ],
)
def test_what_is_not_signed_is_refused(header):
    assert not signed(header)


def test_a_sender_that_changes_its_secret_may_send_both_signatures():
    old = sign("unknown", BODY, NOW)

    assert signed(f"{old},{sign('new', BODY, NOW).partition(',')[2]}")


def test_one_schemes_signature_is_not_the_others():
    plain = hmac.new(b"new", BODY, hashlib.sha256).hexdigest()

    assert not is_signed("ravi", {"X-Hub-Signature-256": f"sha256={plain}"}, BODY, ["new"], NOW)
    assert not is_signed("github", {"X-Ravi-Signature": sign("new", BODY, NOW)}, BODY, ["new"], NOW)
    assert not is_signed("nonsense", {"X-Hub-Signature-256": f"sha256={plain}"}, BODY, ["new"], NOW)
    assert not by_github(plain)
    assert not by_github(f"sha256={plain}", body=b"{}")


def test_without_a_secret_nothing_is_signed():
    assert not signed(sign("", BODY, NOW), secrets=())
    assert not signed(sign(world.SIGNATURES_NOBODYS, BODY, NOW), secrets=())
