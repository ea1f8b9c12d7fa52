"""Directives of the reference. The docstrings are Markdown, as the pages are.

`ravi-api MODULE NAMES`: the public names of a module, or these of them, by their signatures, fields and docstrings.
`ravi-rest`: the calls of the OpenAPI description. `ravi-messages`: the texts of exceptions, read from the code.
`ravi-rows PAGE`: a heading for each row of a page of the reference. The copied sources of the pages, and llms-full.txt
which is made of them, have the Markdown in place of the directives.
"""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from django.db.models import Model
from docutils import nodes
from docutils.statemachine import StringList
from pydantic import BaseModel
from ravi_source import fields_of, is_record, public_names, raised_texts
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).resolve().parents[1]
Raw: Any = type("Raw", (str,), {"__repr__": str.__str__})  # an annotation that a signature shows as it is written


def signature_of(thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    raw = [
        one.replace(annotation=Raw(one.annotation)) if isinstance(one.annotation, str) else one
        for name, one in signature.parameters.items()
        if name not in ("self", "cls", "unknown")
    ]
    returns = signature.return_annotation
    returned = Raw(returns) if isinstance(returns, str) else inspect.Signature.empty
    return str(signature.replace(parameters=raw, return_annotation=returned))


def in_lines(signature: str) -> str:
    """A long signature has each parameter on a line."""
    depth, text = 0, ""
    quoted_or_letter = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|."""
    for letter in re.findall(quoted_or_letter, signature) if len(signature) > 72 else "":
        depth += (letter in "([{") - (letter in ")]}")
        last = letter == ")" and depth == 0
        text += ",\n" * last + letter + "\n    " * (letter == "(" and depth == 1)
        text = text + "\n   " if letter == "," and depth == 1 else text
    return text or signature


def as_markdown(docstring: str) -> str:
    """Lines that begin with the name of a parameter are items of a list."""
    return re.sub(r"^(\w+(?:, \w+)*): (?=\S)", r"- `\1`: ", docstring, flags=re.MULTILINE)


def members_of(cls: type) -> Iterator[tuple[str, str, str]]:
    """Name, signature and docstring of its public methods and properties; of a row, only of its methods."""
    hidden = dir(BaseModel) if issubclass(cls, BaseModel) else ()
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        is_ours = inspect.isfunction(function) and function.__module__.startswith("ravi_django") and name not in hidden
        is_column = issubclass(cls, Model) and isinstance(member, property)
        if is_ours and not is_column and not name.startswith("_") and not function.__name__.startswith("_"):
            yield name, "" if isinstance(member, property) else signature_of(function), inspect.getdoc(member) or ""


def markdown_of(name: str, thing: Any) -> str:
    fields = fields_of(thing) if inspect.isclass(thing) else {}
    if inspect.isclass(thing) and is_record(thing):
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object and base.__name__[0] != "_")
        head = f"class {name}({bases})".removesuffix("()") + ":" * bool(fields)
    else:
        head = name if inspect.isclass(thing) and issubclass(thing, Model) else name + in_lines(signature_of(thing))
        head += f"\n\nclass {name}:" * bool(fields)
    lines = ["```python", head, *(textwrap.indent(text, "    ") for text in fields.values()), "```", ""]
    lines += [as_markdown(inspect.getdoc(thing) or ""), ""]
    if inspect.isclass(thing) and not issubclass(thing, enum.Enum):
        for member, signature, text in members_of(thing):
            lines += [f"- `{member}{signature}`", "", *(f"  {line}" for line in text.splitlines()), ""]
    return "\n".join(lines)


@lru_cache
def rest_calls() -> dict[str, dict[str, Any]]:
    """The operations of the API by method and path below the mount."""
    from ravi_django.api.openapi import description

    methods = ("get", "post", "put", "patch", "delete")
    return {
        f"{method.upper()} {path.removeprefix('/ravi/')}": operation
        for path, operations in description("ravi/", "")["paths"].items()
        for method, operation in operations.items()
        if method in methods and "{namespace}" not in path  # the same with a longer address
    }


def markdown_of_call(operation: dict[str, Any]) -> str:
    lines = [" ".join(dict.fromkeys(filter(None, map(operation.get, ("summary", "description"))))), ""]
    query = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
    lines += ["- Query: " + ", ".join(f"`{name}`" for name in query)] * bool(query)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"- Body (`{kind}`): {fields}" for fields in [_fields(content["schema"])] if fields]
    return "\n".join([*lines, f"- Status: {', '.join(operation['responses'])}"])


def _fields(schema: dict[str, Any]) -> str:
    from ravi_django.api.openapi import description

    if "$ref" in schema:
        schema = description("ravi/", "")["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return ", ".join(f"`{name}`{' (required)' * (name in required)}" for name in schema.get("properties", {}))


def anchor_of(kind: str, name: str) -> str:
    return re.sub(r"[^\w.]+", "-", f"{kind}-{name}").strip("-")


Entries = Iterator[tuple[str, str, str]]  # first part of the anchor, heading, Markdown


def api(argument: str, seen: set[str]) -> Entries:
    module, *names = argument.split()
    for name in names or public_names(module):
        if name not in seen:  # on this page, by an earlier module
            seen.add(name)
            yield "api", name, markdown_of(name, getattr(import_module(module), name))


def rest(argument: str, seen: set[str]) -> Entries:
    for call, operation in sorted(rest_calls().items(), key=lambda item: (item[0].split()[1], item[0])):
        yield "rest", call, markdown_of_call(operation)


def messages(argument: str, seen: set[str]) -> Entries:
    lines = ["| text | exception | raised in `ravi_django/` |", "|---|---|---|"]
    for text, (names, files) in raised_texts().items():
        cell = text.replace("|", r"\|")  # as code, whose quotation marks stay as they are
        cell = f"`` {cell} ``" if "`" in cell else f"`{cell}`"
        codes = (", ".join(f"`{name}`" for name in sorted(each) if name) for each in (names, files))
        lines.append(f"| {cell} | {' | '.join(codes)} |")
    yield "messages", "", "\n".join(lines)


def rows(argument: str, seen: set[str]) -> Entries:
    text = re.sub(r"\]\((?!\.\./|#)", "](../reference/", (DOCS / f"reference/{argument}.md").read_text())
    for name, cause, fix in re.findall(r"^\| `([^`]+)` \|(.*)\|(.*)\|$", text, re.MULTILINE):
        yield "about", name, f"{cause.strip()}.\n\n{fix.strip()}"


KINDS: dict[str, Any] = {"api": api, "rest": rest, "messages": messages, "rows": rows}


class Generated(SphinxDirective):
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # a changed docstring changes the page
        seen = self.env.temp_data.setdefault("ravi-api", set())
        entries = KINDS[self.name.removeprefix("ravi-")](" ".join(self.arguments), seen)
        return [self.section(*entry) for entry in entries]

    def section(self, kind: str, name: str, text: str) -> nodes.Element:
        section = nodes.section(ids=[anchor_of(kind, name)], names=[name]) if name else nodes.container(classes=[kind])
        section += [nodes.title("", "", nodes.literal(text=name))] if name else []
        self.state.nested_parse(StringList(text.splitlines(), source=name), 0, section)
        return section


def expanded(path: Path) -> str:
    """The text of a page with the Markdown of its directives and its included files."""
    seen: set[str] = set()

    def generated(match: re.Match[str]) -> str:
        entries = KINDS[match[1]](match[2].strip(), seen)
        return "\n\n".join(f"### `{name}`\n\n{text}" if name else text for _, name, text in entries)

    def included(match: re.Match[str]) -> str:
        options = dict(re.findall(r'^:([\w-]+): "?([^"\n]*)', match[2], re.MULTILINE))
        text = (path.parent / match[1]).read_text().partition(options.get("start-after", "\n"))[2]  # or the title
        text = text.partition(options.get("end-before", "\0"))[0]
        return re.sub(r"\]\(docs/", "](../", text).strip()

    text = re.sub(r"^```\{ravi-(\w+)\}(.*)\n```$", generated, path.read_text(), flags=re.MULTILINE)
    return re.sub(r"^```\{include\} (\S+)\n((?::.*\n)*)```$", included, text, flags=re.MULTILINE)


def write_sources(app: Sphinx, error: Exception | None) -> None:
    """Before sphinx_llms_txt reads them. It orders pages of one folder by the alphabet unless they have a toctree."""
    for page in app.env.found_docs if error is None else ():
        app.env.toctree_includes.setdefault(page, [])
        copied = Path(app.outdir) / "_sources" / f"{page}.md.txt"
        if copied.exists():
            copied.write_text(expanded(DOCS / f"{page}.md"))


def setup(app: Sphinx) -> dict[str, Any]:
    for kind in KINDS:
        app.add_directive(f"ravi-{kind}", Generated)
    app.connect("build-finished", write_sources, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
