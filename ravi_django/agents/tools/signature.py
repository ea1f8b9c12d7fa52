"""A tool's JSON schema and validator from a function's signature, and its descriptions from the docstring.

The docstring may have Google style ("Args:", "name (type): text") or reST style (":param type name: text").
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from ravi_django.kernel import HumanInput, RunContext, ToolArgumentsError

_HIDDEN_TEXT = re.compile(
    r"(?:[\w.]*\[)?\s*(?:None\s*\|\s*)?(?:\w+\.)*(RunContext|HumanInput)\s*(?:\|\s*None)?\s*\]?\Z"
)
_HIDDEN: dict[str, type[Any]] = {"RunContext": RunContext, "HumanInput": HumanInput}  # filled in by the runtime
_SHOWN_ERRORS = 5
_ROWS = {("django.db.models.", name) for name in ("Model", "QuerySet", "BaseManager")}
MAX_LAYERS = 100  # a decorator may name itself


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a tool that the model fills in."""

    parameters: dict[str, Any]  # JSON schema
    context_parameter: str | None  # the parameter that gets the RunContext
    input_parameter: str | None  # the parameter that gets the HumanInput
    _model: type[BaseModel]
    _names: dict[str, str]  # parameter name → field name in the model

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Python values for every parameter, with defaults. Raises ToolArgumentsError that names the argument."""
        try:
            values = self._model.model_validate(arguments)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            parts = [self._explain_one(detail) for detail in details[:_SHOWN_ERRORS]]
            more = [f"and {len(details) - _SHOWN_ERRORS} more"] if len(details) > _SHOWN_ERRORS else []
            field = str(next(iter(details[0]["loc"]), "arguments"))
            raise ToolArgumentsError("; ".join([*parts, *more]), field=field) from None
        return {name: getattr(values, field) for name, field in self._names.items()}

    def _explain_one(self, detail: ErrorDetails) -> str:
        path = ".".join(map(str, detail["loc"]))
        if detail["type"] == "missing":
            return f"argument {path!r} is missing"
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            takes = ", ".join(self._names) or "no arguments"
            return f"unknown argument {path!r} (there are: {takes})"
        return f"argument {path!r}: {detail['msg'].removeprefix('Value error, ')}"


def layers(function: Callable[..., Any]) -> list[Any]:
    """A callable and those inside of it, to the function that has the code: of a partial, a decorator, a method, or an
    object with `__call__`."""
    chain: list[Any] = [function]
    while (inner := _inside(chain[-1])) is not None and len(chain) < MAX_LAYERS:
        chain.append(inner)
    return chain


def _inside(outer: Any) -> Any:
    if isinstance(outer, functools.partial):
        return outer.func
    if inspect.ismethod(outer):
        return outer.__func__
    inner = getattr(outer, "__wrapped__", None)
    is_function = inspect.isroutine(outer) or inspect.isclass(outer)
    return inner if inner is not None or is_function else type(outer).__call__


def read_signature(function: Callable[..., Any], descriptions: dict[str, str]) -> Signature:
    """Build schema and validator of the parameters that no partial has bound. Raises TypeError with the fix for a
    parameter that a tool cannot have, and for a return annotation of database rows."""
    owner = getattr(function, "__qualname__", repr(function))
    bound = {name for layer in layers(function) if isinstance(layer, functools.partial) for name in layer.keywords}
    hidden: dict[str, str] = {}  # by the name of the type
    names: dict[str, str] = {}
    fields: dict[str, Any] = {}
    signature = inspect.signature(function)
    _refuse_rows(owner, function, signature.return_annotation)
    for parameter in signature.parameters.values():
        if parameter.name in bound:
            continue
        _refuse_kind(owner, parameter)
        if parameter.name == "ctx" and parameter.annotation is parameter.empty:
            raise TypeError(f"tool {owner}: ctx has no type, so the model would fill it in; write ctx: RunContext")
        annotation = _resolve(owner, function, parameter.name, parameter.annotation)
        if (kind := _hidden_kind(annotation)) is not None:
            if kind in hidden:
                raise TypeError(f"tool {owner}: {hidden[kind]} and {parameter.name} are both a {kind}; remove one")
            hidden[kind] = parameter.name
            continue
        # Our own field names: parameters named `json`, `copy` or `_x` would collide with pydantic's.
        names[parameter.name] = f"argument_{len(names)}"
        fields[names[parameter.name]] = _field(parameter, annotation, descriptions.get(parameter.name))
    config = ConfigDict(extra="forbid", protected_namespaces=())
    try:
        model = create_model("Arguments", __config__=config, **fields)
        schema = model.model_json_schema(by_alias=True, schema_generator=_Schema)
    except PydanticUserError as error:
        raise TypeError(f"tool {owner}: {error.message.splitlines()[0]}; use types that JSON can carry") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return Signature(schema, hidden.get("RunContext"), hidden.get("HumanInput"), model, names)


def _refuse_rows(owner: str, function: Callable[..., Any], returned: Any) -> None:
    with suppress(Exception):  # an import for type checkers, or a text that is no type
        returned = _resolve(owner, function, "its result", returned)
    if _has_rows(returned):
        raise TypeError(
            f"tool {owner}: it returns {returned}, which is not JSON; return a dict of fields, or queryset.values(…) "
            "as list[dict]"
        )


def _has_rows(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return re.search(r"\bQuerySet\b", annotation) is not None
    bases = {(base.__module__[:17], base.__name__) for base in getattr(annotation, "__mro__", ())}
    of_variable = (getattr(annotation, "__bound__", None), *getattr(annotation, "__constraints__", ()))
    parts = [part for part in (get_origin(annotation), *get_args(annotation), *of_variable) if part is not None]
    return not _ROWS.isdisjoint(bases) or any(map(_has_rows, parts))


class _Schema(GenerateJsonSchema):
    """Without titles of fields, which a model does not need, and without warnings about defaults that are not JSON."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        return None


def _refuse_kind(owner: str, parameter: inspect.Parameter) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"tool {owner}: a model cannot fill in {parameter}; name each argument")
    if parameter.name == "self":
        raise TypeError(f"tool {owner}: a method needs its object; use a bound method, FunctionTool(obj.name)")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise TypeError(
            f"tool {owner}: {parameter.name} is positional-only, but tools are called by keyword; remove the '/'"
        )


def _resolve(owner: str, function: Callable[..., Any], name: str, annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    # Often imported only under TYPE_CHECKING, so the name cannot be resolved.
    if isinstance(annotation, str) and (match := _HIDDEN_TEXT.match(annotation.strip())):
        return _HIDDEN[match.group(1)]

    def holder() -> None: ...

    holder.__annotations__ = {"annotation": annotation}
    names = getattr(layers(function)[-1], "__globals__", {})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)["annotation"]
    except NameError as error:
        raise TypeError(
            f"tool {owner}: the annotation of {name} cannot be read ({error}); import it at module level"
        ) from error


def _hidden_kind(annotation: Any) -> str | None:
    """The name of the type in _HIDDEN that the annotation is or includes."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _hidden_kind(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return next(filter(None, map(_hidden_kind, get_args(annotation))), None)
    if not isinstance(annotation, type):
        return None
    return next((name for name, kind in _HIDDEN.items() if kind in annotation.__mro__), None)


def _field(parameter: inspect.Parameter, annotation: Any, description: str | None) -> tuple[Any, FieldInfo]:
    has_description = get_origin(annotation) is Annotated and any(
        isinstance(extra, FieldInfo) and extra.description for extra in get_args(annotation)[1:]
    )
    options: dict[str, Any] = {} if has_description or not description else {"description": description}
    if isinstance(parameter.default, FieldInfo):
        raise TypeError(
            f"{parameter.name}: use Annotated[{parameter.name}'s type, Field(…)] and a plain default, "
            "so that the function can also be called from Python"
        )
    default = ... if parameter.default is parameter.empty else parameter.default
    if default is None and annotation is not Any:  # `b: int = None`: a model may send the default
        annotation |= None
    return annotation, Field(default, alias=parameter.name, **options)


# A title of a section or a reST field, with the indented lines below it. The rest of a docstring is the description.
_PART = re.compile(
    r"^(?:(?P<arguments>Args|Arguments|Parameters|Params):[ \t]*\n|(?:Returns?|Yields?|Raises):[ \t]*\n"
    r"|:(?:(?:param|parameter|arg|argument)[ \t]+(?:[^:\n]*[ \t])?\*{0,2}(?P<name>\w+)|\w[^:\n]*):(?P<text>.*\n))"
    r"(?P<lines>(?:(?:[ \t].*)?\n)*)",
    re.MULTILINE,
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)[ \t]*(?:\([^)\n]*\))?[ \t]*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Docstring:
    description: str
    parameters: dict[str, str]


def text_of(function: Callable[..., Any]) -> str:
    """The docstring of the outermost function that has one of its own, else of the object."""
    texts = [layer.__doc__ for layer in layers(function) if inspect.isroutine(layer)]
    return next((text for text in [*texts, function.__doc__] if text and text != functools.partial.__doc__), "")


def read_docstring(function: Callable[..., Any]) -> Docstring:
    """Parse a function's docstring; without one everything is empty."""
    text = inspect.cleandoc(text_of(function)) + "\n"
    entries: list[str] = []  # a name, its text, the next name, …
    for part in _PART.finditer(text):
        if part["arguments"]:
            entries += _ENTRY.split(textwrap.dedent(part["lines"]))[1:]
        elif part["name"]:
            entries += part["name"], part["text"] + part["lines"]
    parameters = {name: " ".join(lines.split()) for name, lines in zip(entries[::2], entries[1::2], strict=True)}
    return Docstring(_PART.sub("", text).strip(), parameters)
