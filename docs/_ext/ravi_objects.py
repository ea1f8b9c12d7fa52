"""Links to settings, checks, commands, permissions and more: `RAVI["FOUR_EYES"]` in a code span of any page.

A setting of Django, and a dotted name of Django, Celery, pydantic or Python, is a link to the docs of that project.

An object is defined by the row of its type's page that has its name in the first cell. A new type is a row of TYPES.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from ravi_api import anchor_of, public_names, rest_calls
from sphinx.application import Sphinx
from sphinx.domains import Domain, ObjType
from sphinx.ext.intersphinx import InventoryAdapter
from sphinx.util import logging

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObjectType:
    name: str
    page: str  # where its objects are defined
    use: re.Pattern[str]  # a code span that names one, from its beginning
    must: re.Pattern[str] | None = None  # a code span that names one for certain: without a row it is a warning

    folder: ClassVar[Path] = Path(__file__).resolve().parent.parent

    @cached_property
    def defined(self) -> set[str]:
        if self.name in ("api", "rest"):
            return {*(public_names("ravi_django") if self.name == "api" else rest_calls())}
        text = (self.folder / f"{self.page}.md").read_text()
        return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))

    def anchor(self, name: str) -> str:
        return anchor_of(self.name, name)


SETTING = re.compile(r'RAVI\["([A-Z_]+)"\]|([A-Z]+_[A-Z_]+)$')
COMMAND = re.compile(r"(?:python )?manage\.py (ravi_\w+)|(ravi_\w+)(?= -|$)")
TYPES = (
    ObjectType("setting", "reference/settings", SETTING, re.compile(r"RAVI\[")),
    ObjectType("check", "reference/checks", re.compile(r"(ravi\.[EWI]\d{3})$"), re.compile(r"ravi\.[EWI]\d")),
    ObjectType("command", "reference/commands", COMMAND, re.compile(r"(?:python )?manage\.py ravi_")),
    ObjectType("context", "reference/ctx", re.compile(r"(?:await )?(ctx\.\w+)"), re.compile(r"(?:await )?ctx\.\w+")),
    ObjectType("api", "reference/api", re.compile(r"@?([A-Z]\w+)(?=\(|$)|@?([a-z_]+)(?=\()|@(\w+)")),
    ObjectType("rest", "reference/endpoints", re.compile(r"((?:GET|POST|PUT|PATCH|DELETE) [\w/{}.-]+)(?=\?|$| \{)")),
    ObjectType("exception", "reference/exceptions", re.compile(r"([A-Z]\w+)$")),
    ObjectType("permission", "reference/permissions", re.compile(r"(ravi\.[a-z_]+)$")),
)
OTHERS = ("help/changelog", "internals/", "reference/messages")  # name also what is gone, of others, or half a text


OF_OTHER_PROJECTS = ("std:setting", *(f"py:{kind}" for kind in ("module", "class", "exception", "function", "method")))


class Objects(Domain):
    """Lists the objects for the search, which shows them above pages that only name them."""

    name = label = "ravi"
    object_types: ClassVar = {one.name: ObjType(one.name) for one in TYPES}

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        for one in TYPES:
            for name in sorted(one.defined):
                yield name, name, one.name, one.page, one.anchor(name), 1

    def merge_domaindata(self, docnames: set[str], otherdata: dict[str, Any]) -> None: ...


def define(app: Sphinx, doctree: nodes.document) -> None:
    for type_ in TYPES:
        if type_.page == app.env.docname:
            for cell, name in _first_cells(doctree):
                if name in type_.defined:
                    cell["ids"].append(type_.anchor(name))


def _first_cells(doctree: nodes.document) -> Iterator[tuple[nodes.Element, str]]:
    for row in doctree.findall(nodes.row):
        cell = row[0]
        yield cell, cell.astext()  # type: ignore[misc]


def link(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for span in list(doctree.findall(nodes.literal)):
        if isinstance(span.parent, nodes.reference | nodes.title):
            continue
        for type_ in TYPES:
            match = type_.use.match(span.astext())
            name = next(filter(None, match.groups()), "") if match else ""
            if name in type_.defined:
                if not (type_.page == page and name == span.astext() and isinstance(span.parent.parent, nodes.entry)):
                    address = "" if type_.page == page else app.builder.get_relative_uri(page, type_.page)
                    reference = nodes.reference("", "", internal=True, refuri=f"{address}#{type_.anchor(name)}")
                    span.replace_self(reference)
                    reference += span
                break
            if not page.startswith(OTHERS) and type_.must and type_.must.match(span.astext()):
                log.warning("no %s is called %s: see %s", type_.name, span.astext(), type_.page, location=span)
        else:
            if address := address_elsewhere(app.env, span.astext()):
                reference = nodes.reference("", "", internal=False, refuri=address)
                span.replace_self(reference)
                reference += span


def address_elsewhere(env: Any, text: str) -> str:
    """Empty for a word without a dot or underscore, such as `str`, which would be a link in each line."""
    name = text.removesuffix("()")
    if not (name.isupper() or "." in name or "_" in name):
        return ""
    inventory = InventoryAdapter(env).main_inventory
    items = (inventory[kind].get(name) for kind in OF_OTHER_PROJECTS if kind in inventory)
    return next((item.uri for item in items if item), "")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_domain(Objects)
    app.connect("doctree-read", define)
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
