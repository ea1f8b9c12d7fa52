"""What a webhook source takes: items out of somebody else's JSON, signed with its secret."""

import hashlib
import hmac

import pytest

from ravi_django.kernel import InputTooLargeError
from ravi_django.wings.feeds.fetching.adapter import MOST_OF_BODY as MOST, at_path, items_in, option_errors
from ravi_django.wings.feeds.fetching.signatures import TOLERANCE_S, is_signed, sign
from tests.support import world
from tests.support.cases import case, refused


def test_where_the_values_are():
    # the usual names are known
    (item,) = items_in({"guid": 7, "title": "Down", "text": "It is.", "url": "https://example.com/7", "x": [1]}, {})
    assert (item.id, item.title, item.text, item.url) == ("7", "Down", "It is.", "https://example.com/7")
    assert item.extra == {
        "body": {"guid": 7, "title": "Down", "text": "It is.", "url": "https://example.com/7", "x": [1]}
    }
    # the options say where else they are
    body = {"event": {"id": "e1", "what": "down"}, "hosts": ["a", "b"], "secret": "tiger"}
    options = {"id": "event.id", "title": "event.what", "text": "hosts.1", "keep": ["hosts", "no.such"]}
    (item,) = items_in(body, options)
    assert (item.id, item.title, item.text) == ("e1", "down", "b")
    assert item.extra == {"hosts": ["a", "b"], "no.such": None}
    # an array is as many items
    assert [item.id for item in items_in([{"id": 1}, {"id": 2}], {})] == ["1", "2"]
    assert [item.id for item in items_in({"data": {"rows": [{"id": 3}]}}, {"items": "data.rows"})] == ["3"]
    assert [item.id for item in items_in({"data": {"id": 4}}, {"items": "data"})] == ["4"]
    assert items_in([], {}) == []
    # without an id it is known by all that it says
    first, again, other = (items_in(body, {})[0] for body in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}))
    assert first.identity == again.identity != other.identity


def test_what_cannot_be_meant_is_named():
    for body, options, field in [
        (7, {}, "body"), ("text", {}, "body"), (None, {}, "body"), ([1], {}, "0"), ([{"id": 1}, None], {}, "1"),
        ({"id": {"a": 1}}, {}, "id"), ({"title": True}, {}, "title"), ([{"text": []}], {}, "0.text"),
        ({"a": 1}, {"id": "event.id"}, "event.id"), ({"rows": 5}, {"items": "rows"}, "rows"),
        ({}, {"items": "rows"}, "rows"), ({"rows": [{"k": {}}]}, {"items": "rows", "title": "k"}, "rows.0.k"),
        ([{}] * (MOST + 1), {}, "body"),
    ]:  # fmt: skip
        with case(body, options, field), refused(field):
            items_in(body, options)
    # what is too big is said with the fix
    body = {"id": 1, "log": "x" * 70_000}
    with pytest.raises(InputTooLargeError, match="option keep"):
        items_in(body, {})
    assert items_in(body, {"keep": ["id"]})[0].extra == {"id": 1}


def test_a_path_leads_to_a_value_or_nowhere():
    for path, value in [
        ("a.b", 1), ("l.0.c", 2), ("l.9", None), ("l.-1", None), ("a.b.c", None), ("x", None), ("l.99999999", None),
    ]:  # fmt: skip
        assert at_path({"a": {"b": 1}, "l": [{"c": 2}]}, path) == value, path
    # options that are no paths are named
    wrong = {"id": 5, "title": "a..b", "items": "", "keep": ["a", 1], "text": "fine"}
    assert [fault.split()[0] for fault in option_errors(wrong)] == ["id", "title", "items", "keep"]
    assert list(option_errors({"id": "a", "keep": []})) == []


NOW = 1_790_000_000
BODY = b'{"id": 7}'


def signed(header: str, *, secrets: tuple[str, ...] = ("new", "old"), body: bytes = BODY, now: float = NOW) -> bool:
    return is_signed("ravi", {"X-Ravi-Signature": header}, body, secrets, now)


def by_github(header: str, *, secrets: tuple[str, ...] = ("new", "old"), body: bytes = BODY) -> bool:
    return is_signed("github", {"X-Hub-Signature-256": header}, body, secrets, NOW)


def test_what_is_signed_about_now_holds():
    expected = hmac.new(b"new", b'1790000000.{"id": 7}', hashlib.sha256).hexdigest()
    assert sign("new", BODY, NOW) == f"t=1790000000,v1={expected}"
    # both secrets are valid
    for secret in ["new", "old"]:
        with case(secret):
            assert signed(sign(secret, BODY, NOW))
            assert by_github("sha256=" + hmac.new(secret.encode(), BODY, hashlib.sha256).hexdigest())
    # within the tolerance it holds
    for away in [0, TOLERANCE_S, -TOLERANCE_S]:
        assert signed(sign("new", BODY, NOW), now=NOW + away), away
    # beyond the tolerance it does not
    for away in [TOLERANCE_S + 1, -TOLERANCE_S - 1]:
        assert not signed(sign("new", BODY, NOW), now=NOW + away), away
    # a sender that changes its secret may send both signatures
    old = sign("unknown", BODY, NOW)
    assert signed(f"{old},{sign('new', BODY, NOW).partition(',')[2]}")


def test_what_is_not_signed_is_refused():
    for header in [
        *("", "t=1790000000", "v1=", "t=1790000000,v1=", "t=,v1=ab", "nonsense", "t=1790000000,v1=ü", "=,=,="),
        sign("other", BODY, NOW), sign("new", b"{}", NOW),
        sign("new", BODY, NOW).replace("t=1790000000", "t=1790000001"), sign("new", BODY, NOW).replace("t=", "t=0"),
        "t=1790000000," + sign("new", BODY, NOW), "t=" + "9" * 30 + ",v1=ab", "t=-5,v1=ab", "t=١٧٩,v1=ab",
        hmac.new(b"new", BODY, hashlib.sha256).hexdigest(),
        f"t={NOW},v1=a,v1=b,v1=c,v1=d,v1=e," + sign("new", BODY, NOW).partition(",")[2],
    ]:  # fmt: skip
        assert not signed(header), header
    # one schemes signature is not the others
    plain = hmac.new(b"new", BODY, hashlib.sha256).hexdigest()
    assert not is_signed("ravi", {"X-Hub-Signature-256": f"sha256={plain}"}, BODY, ["new"], NOW)
    assert not is_signed("github", {"X-Ravi-Signature": sign("new", BODY, NOW)}, BODY, ["new"], NOW)
    assert not is_signed("nonsense", {"X-Hub-Signature-256": f"sha256={plain}"}, BODY, ["new"], NOW)
    assert not by_github(plain) and not by_github(f"sha256={plain}", body=b"{}")
    # without a secret nothing is signed

    assert not signed(sign("", BODY, NOW), secrets=())
    assert not signed(sign(world.SIGNATURES_NOBODYS, BODY, NOW), secrets=())
