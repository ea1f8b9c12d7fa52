"""The German catalog: it has each text of the source, and what is compiled is what is written."""

import ast
import gettext
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

import ravi_django
from ravi_django.agents.spec.spec import AgentSpec
from ravi_django.models.names import ROW_VALUES

PACKAGE = Path(ravi_django.__file__).parent
CATALOG = PACKAGE / "locale/de/LC_MESSAGES/django.po"
MARKS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "pgettext"}
TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
CALL = re.compile(rf"\b(?:n?gettext\(|_\(|pgettext\(u?(?:{TEXT}),)\s*u?(?P<text>{TEXT})")
PLACE = re.compile(r"%(?:\(\w+\))?[sd]|\{\}")


@cache
def in_code() -> set[str]:
    nodes = (node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    calls = (node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MARKS)
    texts = (call.args[1 if call.func.id == "pgettext" else 0] for call in calls)
    return {text.value for text in texts if isinstance(text, ast.Constant)}


def in_templates() -> Iterator[str]:
    for path in (PACKAGE / "templates").rglob("*.*"):
        for found in CALL.finditer(templatize(path.read_text())):
            yield ast.literal_eval(found["text"])


def written() -> dict[str, list[str]]:
    """The German forms by msgid, of the .po."""
    entries: dict[str, list[str]] = {}
    for block in CATALOG.read_text().split("\n\n")[1:]:
        lines = [line.split(" ", 1) for line in block.splitlines() if not line.startswith("#")]
        texts = {name: ast.literal_eval(text) for name, text in lines}
        entries[texts["msgid"]] = [text for name, text in texts.items() if name.startswith("msgstr")]
    return entries


@pytest.mark.parametrize("source", [in_code, in_templates])
def test_each_text_has_a_german_one(source) -> None:
    texts, german = set(source()), written()

    assert len(texts) > 150
    assert sorted(texts - german.keys()) == []


def test_the_catalog_has_nothing_else() -> None:
    assert sorted(written().keys() - {*in_code(), *in_templates()}) == []


def test_a_translation_has_the_places_of_its_text() -> None:
    for text, forms in written().items():
        for form in forms:
            assert form, text
            assert set(PLACE.findall(form)) == set(PLACE.findall(text)), text


def test_what_is_compiled_is_what_is_written() -> None:
    with CATALOG.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    found: dict[str, list[str]] = {}
    for key, text in sorted((str(key), text) for key, text in compiled.items() if key):
        name = ast.literal_eval(key)[0] if key.startswith("(") else key
        found.setdefault(name.rpartition("\x04")[2], []).append(text)

    assert found == written()


def test_each_part_of_a_spec_has_a_name() -> None:
    assert {name.replace("_", " ") for name in AgentSpec.model_fields} <= ROW_VALUES
