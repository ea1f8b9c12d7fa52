"""Reads the source of the package for the generated pages: names, fields and texts of exceptions. Needs no Sphinx."""

from __future__ import annotations

import ast
import enum
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import is_typeddict

from pydantic import BaseModel
from typing_extensions import is_protocol

PACKAGE = Path(__file__).resolve().parents[2] / "ravi_django"
Names = dict[str, list[ast.expr]]  # the values that a scope assigns to a name


@cache
def tree_of(module: str) -> tuple[list[str], ast.Module]:
    text = Path(str(sys.modules[module].__file__)).read_text()
    return text.splitlines(), ast.parse(text)


def public_names(module: str) -> list[str]:
    """`__all__`, else what the module imports as `name as name`. Only functions and classes of ours."""
    loaded = import_module(module)
    imports = [node.names for node in ast.walk(tree_of(module)[1]) if isinstance(node, ast.ImportFrom)]
    names = getattr(loaded, "__all__", [one.asname for each in imports for one in each if one.asname])
    things = ((name, getattr(loaded, name)) for name in sorted(names) if not name.startswith("_"))
    return [name for name, one in things if callable(one) and one.__module__.startswith("ravi_django")]


def is_record(cls: type) -> bool:
    """Whether its fields are all that a reader needs. Tools and agents have an `__init__`."""
    return is_dataclass(cls) or is_typeddict(cls) or issubclass(cls, BaseModel | enum.Enum) or is_protocol(cls)


def fields_of(cls: type) -> dict[str, str]:
    """The source of each public field with its type, default and comment; of a record those of its bases first."""
    fields = {}
    for base in reversed(cls.__mro__ if is_record(cls) else [cls]):
        if not base.__module__.startswith("ravi_django"):
            continue
        lines, tree = tree_of(base.__module__)
        for node in (node for top in tree.body if getattr(top, "name", "") == base.__name__ for node in top.body):
            name = _name(getattr(node, "target", getattr(node, "targets", [None])[0]))
            is_field = isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
            if name[:1] not in ("", "_") and (is_field or issubclass(base, enum.Enum)):
                begin = node.lineno - 1
                while lines[begin - 1].startswith("    #"):
                    begin -= 1
                text = re.sub(r"  # (noqa|type:).*", "", "\n".join(lines[begin : node.end_lineno]))
                fields[name] = textwrap.dedent(text)
    return fields


@cache
def raised_texts() -> dict[str, tuple[set[str], set[str]]]:
    """Texts of exceptions, each with the classes and the files that raise it. "…" is a value."""
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    raised = (_name(getattr(node.exc, "func", None)) for node in nodes if isinstance(node, ast.Raise))
    classes = {name for name in raised if name[:1].isupper()}
    makers = _makers(nodes)
    texts: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for path, tree in trees.items():
        for name, call, names in _calls(tree, classes, {**makers, **_makers(ast.walk(tree))}):
            for argument in (*call.args, *(one.value for one in call.keywords)):
                for text in _texts(argument, names):
                    text = re.sub(r"%\(\w+\)[sd]", "…", re.sub(r"\s+", " ", text))
                    text = re.sub(r"…(\s*…)+", "…", text).strip()
                    if len(re.findall(r"[^\W\d_]{2,}", text)) > 1 and " " in text:
                        texts[text][0].add(name)
                        texts[text][1].add(path)
    return dict(sorted(texts.items(), key=lambda item: re.sub(r"^\W+", "", item[0]).lower()))


def _name(node: ast.AST | None) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _makers(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Functions, with the class that they return."""
    return {node.name: _name(node.returns) for node in nodes if isinstance(node, ast.FunctionDef)}


def _calls(tree: ast.Module, classes: set[str], makers: dict[str, str]) -> Iterator[tuple[str, ast.Call, Names]]:
    """Calls that make an exception: of its class, of a function after `raise`, of its `super().__init__`."""
    for scope, owner in _scopes(tree, ""):
        names: Names = defaultdict(list)
        for node in (*tree.body, *ast.walk(scope)):
            if isinstance(node, ast.Assign | ast.NamedExpr):
                names[_name(getattr(node, "target", None) or node.targets[0])].append(node.value)
        for node in ast.walk(scope):
            match node:
                case ast.Call(func=ast.Attribute(ast.Call(ast.Name("super")), "__init__")) if owner in classes:
                    yield owner, node, names
                case ast.Call(func=function) if _name(function) in classes:
                    yield _name(function), node, names
                case ast.Raise(exc=ast.Call(func=function) as call):  # a function, or a class in a variable
                    made = makers.get(_name(function), "")
                    yield made if made in classes else "", call, names


def _scopes(node: ast.AST, owner: str) -> Iterator[tuple[ast.AST, str]]:
    """The outermost functions, with the names of their classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, owner
        else:
            yield from _scopes(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _texts(node: ast.AST, names: Names) -> list[str]:
    """The texts that an expression may have."""
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(each) for each in product(*(_texts(part, names) for part in parts))]
        case ast.FormattedValue(value=ast.Name() as value):
            return _texts(value, names)
        case ast.Call(func=ast.Name(id="_" | "gettext"), args=[value, *_]):
            return _texts(value, names)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return ["".join(each) for each in product(_texts(left, names), _texts(right, names))]
        case ast.BinOp(left=value, op=ast.Mod()) | ast.Call(func=ast.Attribute(attr="format", value=value)):
            return [re.sub(r"%(\(\w+\))?[sdr]|\{\w*\}", "…", text) for text in _texts(value, names)]
        case ast.IfExp(body=one, orelse=other) | ast.Call(func=ast.Name(id="ngettext"), args=[one, other, *_]):
            return [*_texts(one, names), *_texts(other, names)]
        case ast.Name(id=name) if name in names:
            others = {key: values for key, values in names.items() if key != name}
            return [text for value in names[name] for text in _texts(value, others)]
    return ["…"]
