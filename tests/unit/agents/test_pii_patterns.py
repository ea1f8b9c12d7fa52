"""What counts as personal data, and what only looks like it."""

import pytest

from ravi_django.kernel import InvalidInputError
from ravi_django.wings.guards.patterns import chosen, custom, spans_in
from tests.support.cases import case, refused

ALL = tuple(chosen(None))


def found(text: str) -> list[tuple[str, str]]:
    return [(label, text[start:end]) for start, end, label in spans_in(text, ALL)]


def test_what_is_found() -> None:
    for text, label, value in [
        ("mail bob@example.org, please", "email", "bob@example.org"),
        ("'o'brien+x@mail.co.uk'.", "email", "o'brien+x@mail.co.uk"),
        ("an jürgen@müller.de", "email", "jürgen@müller.de"),
        ("https://x.org/?email=bob@x.org", "email", "bob@x.org"),
        ("to DE89 3704 0044 0532 0130 00 IST DA", "iban", "DE89 3704 0044 0532 0130 00"),
        ("gb82west12345698765432", "iban", "gb82west12345698765432"),
        ("card 4111 1111 1111 1111 12/26", "credit card", "4111 1111 1111 1111"),
        ("5500-0000-0000-0004", "credit card", "5500-0000-0000-0004"),
        ("378282246310005", "credit card", "378282246310005"), ("SSN 078-05-1120.", "ssn", "078-05-1120"),
        ("from 192.168.0.1:8000", "ip address", "192.168.0.1"), ("from 2001:db8::1.", "ip address", "2001:db8::1"),
        ("call +49 (0)30 123456-78 now", "phone", "+49 (0)30 123456-78"),
        ("call +1 555 123 4567", "phone", "+1 555 123 4567"), ("(555) 123-4567", "phone", "(555) 123-4567"),
        ("020 7946 0958", "phone", "020 7946 0958"), ("06 12 34 56 78", "phone", "06 12 34 56 78"),
    ]:  # fmt: skip
        assert found(text) == [(label, value)], text
    # what only looks like it is left
    wrong_checksum, too_short = ("4111 1111 1111 1112", "DE88370400440532013000"), ("GB12WEST123456987", "DE12 ")
    for text in [
        *wrong_checksum, *too_short, "0000-0000-0000-0000", "000-12-3456", "12:30:45", "version 1.2.3", "999.1.1.1",
        "Cafe::bed", "01.02.2024 10:30", "2024-01-31T10:00:00", "order 1234567890", "3.14159265358979",
        "550e8400-e29b-41d4-a716-446655440000", "user@localhost",
    ]:  # fmt: skip
        assert found(text) == [], text


def test_a_sites_own_patterns_go_before_the_shipped_ones() -> None:
    text = "order 4111111111111111 of bob@example.org"
    patterns = (*custom({"order no": r"\d{16}"}), *ALL)
    assert [label for _, _, label in spans_in(text, patterns)] == ["order no", "email"]
    # an unknown kind is refused
    assert [pattern.label for pattern in chosen(["email"])] == ["email"]
    with pytest.raises(InvalidInputError, match="unknown kind 'name'"):
        chosen(["name"])
    # a pattern that cannot be is refused by name
    for patterns, field in [
        ({"order": "("}, "patterns.order"), ({"order": "x*"}, "patterns.order"), ({"order": 7}, "patterns.order"),
        ({"email": "x"}, "patterns.email"), ({"Order [1]": "x"}, "patterns"), ({"order 1": "x"}, "patterns"),
    ]:  # fmt: skip
        with case(patterns, field), refused(field):
            custom(patterns)
