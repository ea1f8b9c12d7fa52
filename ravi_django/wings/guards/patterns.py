"""Patterns of personal data in a text, with a checksum or another check where there is one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ravi_django.kernel.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of personal data."""

    label: str  # as the placeholder shows it: "[email 1]"
    regex: re.Pattern[str]
    check: Callable[[str], int] | None = None  # characters of a candidate that belong to a valid value; 0: none
    sign: str = ""  # a text without this character has no match

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        if self.sign and self.sign not in text:
            return
        for match in self.regex.finditer(text):
            start, end = match.span()
            if self.check is not None:
                end = start + self.check(match.group())
            if end > start:
                yield start, end


def spans_in(text: str, patterns: tuple[Pattern, ...]) -> list[tuple[int, int, str]]:
    """(start, end, label) of the matches, from left to right. Of overlapping matches the earlier pattern's counts."""
    spans: list[tuple[int, int, str]] = []
    taken = bytearray(len(text))
    for pattern in patterns:
        for start, end in pattern.spans(text):
            if not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                spans.append((start, end, pattern.label))
    return sorted(spans)


def _card(text: str) -> int:
    """The length of the longest valid card number; the digits after it may be a date or a code."""
    indexes = [index for index, letter in enumerate(text) if letter.isdigit()]
    for count in range(len(indexes), 12, -1):
        end = indexes[count - 1] + 1
        if text[end : end + 1].isdigit():
            continue
        digits = [int(text[index]) for index in indexes[:count]]
        doubled = (sum(divmod(digit * 2, 10)) for digit in digits[-2::-2])
        if len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0:
            return end
    return 0


_IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL SD FK", 19: "MK SI", 20: "AT BA EE KZ LT LU XK MN",
        21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip


def _iban(text: str) -> int:
    """The length of the country's IBANs if the checksum is valid; the text after it may be words."""
    length = _IBAN_LENGTHS.get(text[:2].upper())
    indexes = [index for index, letter in enumerate(text) if letter.isalnum()]
    if length is None or len(indexes) < length:
        return 0
    end = indexes[length - 1] + 1
    letters = "".join(letter for letter in text[:end].upper() if letter.isalnum())
    number = "".join(str(int(letter, 36)) for letter in letters[4:] + letters[:4])
    return end if int(number) % 97 == 1 else 0


_DATE = re.compile(r"\d{1,2}([./-])\d{1,2}\1(?:19|20)\d\d")


def _phone(text: str) -> int:
    digits = sum(letter.isdigit() for letter in text)
    least = 8 if text.startswith("+") else 9
    return len(text) if least <= digits <= 15 and not _DATE.match(text) else 0


def _ip(text: str) -> int:
    if ":" in text and not any(letter.isdigit() for letter in text):
        return 0  # names joined by colons, as in source code
    candidate = text.rstrip(".:") if not text.endswith("::") else text
    try:
        ipaddress.ip_address(candidate)
    except ValueError:
        return 0
    return len(candidate)


# Every repetition is bounded, and none can begin inside an earlier match: linear in the text's length.
_ALL = [
    Pattern(
        "iban",
        re.compile(
            rf"(?<![A-Z0-9])(?=[A-Z]{{2}}\d\d)(?:{'|'.join(_IBAN_LENGTHS)})\d\d(?:[ -]?[A-Z0-9]){{11,30}}", re.I | re.A
        ),
        _iban,
    ),
    Pattern("credit card", re.compile(r"(?<![\w.,+-])[2-6](?:[ -]?\d){12,18}(?!\d)", re.A), _card),
    Pattern(
        "ssn",
        re.compile(r"(?<![\w-])(?!000|666|9)\d{3}(?P<between>[ -])(?!00)\d{2}(?P=between)(?!0000)\d{4}(?![\w-])", re.A),
    ),
    Pattern(
        "email",
        re.compile(r"(?<![\w.%+-])[\w.%+-][\w.%+'-]{0,63}@(?:[^\W_][\w-]{0,62}\.){1,8}[^\W\d_][\w-]{1,62}(?<![-_])"),
        sign="@",
    ),
    Pattern(
        "ip address",
        re.compile(
            r"(?<![\w.:])(?:(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)|(?=[0-9A-F]{0,4}:)(?:[0-9A-F]{0,4}:){2,8}[0-9A-F.]{0,15}"
            r"(?![\w]))",
            re.I | re.A,
        ),
        _ip,
    ),
    Pattern(
        "phone",
        re.compile(
            r"(?<![\w.,+/-])(?:"
            r"(?:\+|00)[1-9](?:[ ./-]?\(?\d\)?){6,14}"  # with the country's code
            r"|(?:\+?1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # North America
            r"|\(?0[1-9]\d{0,4}\)?(?:[ ./-]{1,2}\d{2,8}){1,4}"  # the trunk's 0, and something between
            r")(?![\w-])",
            re.A,
        ),
        _phone,
    ),
]
PATTERNS: Mapping[str, Pattern] = {pattern.label: pattern for pattern in _ALL}
_LABEL = re.compile(r"[a-z][a-z0-9_ -]{0,39}")


def custom(patterns: Mapping[str, str | re.Pattern[str]]) -> list[Pattern]:
    """Patterns of a site, by label. Raises InvalidInputError that names the one to fix."""
    compiled = []
    for label, expression in patterns.items():
        field = f"patterns.{label}"
        if not isinstance(label, str) or not _LABEL.fullmatch(label) or label[-1].isdigit():
            raise InvalidInputError(f"a pattern needs a name like 'order no', not {label!r}", field="patterns")
        if label in PATTERNS:
            raise InvalidInputError(f"{label!r} is a built-in pattern; choose another name", field=field)
        try:
            regex = re.compile(expression)
        except (re.error, TypeError) as error:
            raise InvalidInputError(f"{label!r} is not a valid regular expression: {error}", field=field) from None
        if regex.match("") is not None:
            raise InvalidInputError(f"{label!r} matches the empty text; require a character", field=field)
        compiled.append(Pattern(label, regex))
    return compiled


def chosen(kinds: object) -> list[Pattern]:
    """The built-in patterns with these labels; all for None. Raises InvalidInputError."""
    if kinds is None:
        return list(_ALL)
    wanted = [kinds] if isinstance(kinds, str) else list(kinds)  # type: ignore[call-overload]
    if unknown := [kind for kind in wanted if kind not in PATTERNS]:
        raise InvalidInputError(f"unknown kind {unknown[0]!r}; the kinds are {', '.join(PATTERNS)}", field="kinds")
    return [pattern for pattern in _ALL if pattern.label in wanted]
