"""`docs/internals/seeds.md`: each name of the design documents leads to code and to a guide."""

from __future__ import annotations

import re
from inspect import signature
from pkgutil import resolve_name
from typing import get_type_hints
from uuid import UUID

from django.urls import resolve

from ravi_django.conf import DEFAULTS
from tests.support.docs import ROOT, Page

INSIDE = re.compile(r"ravi_django\.(engine|runs|calls|live|wings)\b")  # may move


def leads_somewhere(code: str, owner: str) -> bool:
    """Whether a code span of the middle column is what it says; `owner` is the name before it."""
    if code.endswith("="):
        return code[:-1] in signature(resolve_name(owner)).parameters
    if call := re.match(r"[A-Z]+ (\S+)", code):
        return resolve("/ravi/" + re.sub(r"{\w+}", str(UUID(int=0)), call[1])).url_name != "nothing"
    if setting := re.fullmatch(r'RAVI\["(\w+)"\]', code):
        return setting[1] in DEFAULTS
    if "/" in code:
        return (ROOT / code).exists()
    try:
        return resolve_name(code) is not None
    except (AttributeError, ImportError):  # a field without a default
        parent, _, field = code.rpartition(".")
        return field in get_type_hints(resolve_name(parent))


def test_each_name_leads_to_code_and_to_a_guide() -> None:
    text = Page("seeds").text
    rows = re.findall(r"^\| (.+?) \| (.+?) \| \[.+ \|$", text, re.MULTILINE)
    wrong = []
    for name, codes in rows:
        owner = ""
        for span in re.findall(r"`(.+?)`", codes):
            code = owner + span if span.startswith(".") else span
            if INSIDE.match(code) or not leads_somewhere(code, owner):
                wrong.append(f"{name}: {code}")
            owner = code if span.startswith("ravi_django.") else owner
    assert (len(rows), wrong) == (text.count("\n| ") - text.count("| import |"), [])
