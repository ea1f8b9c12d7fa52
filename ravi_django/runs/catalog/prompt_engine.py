"""Django's template language, sandboxed: a template sees JSON values and nothing else of the process.

No loaders and no libraries, a short list of tags and filters whose output depends on their input alone, lookups in
dicts and lists but not of Python attributes, and a limit on the work for any text and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.template import Engine, Library, Node, NodeList, TemplateSyntaxError
from django.template.base import FilterExpression, Lexer, Origin, Parser, Variable
from django.template.context import Context
from django.template.defaultfilters import register as filters
from django.template.defaulttags import CycleNode, FirstOfNode, ForNode, WithNode, register as tags
from django.utils import translation
from django.utils.functional import Promise

MAX_WORK = 2_000_000  # of one rendering: characters, list items, and STEP for each node and expression
STEP = 20
MAX_UNCLOSED = 200  # marks: Django's lexer searches the rest of the line for the end of each
MAX_WIDTH = 1_000  # of `ljust`, `rjust`, `center`; the digits of `floatformat`

TAGS = ["comment", "cycle", "firstof", "for", "if", "spaceless", "templatetag", "verbatim", "with"]
# Without filters of time, chance and HTML, and without `stringformat`, which allocates any size.
FILTERS = [
    *["add", "addslashes", "capfirst", "center", "cut", "default", "default_if_none", "dictsort", "dictsortreversed"],
    *["divisibleby", "filesizeformat", "first", "floatformat", "get_digit", "join", "last", "length", "ljust", "lower"],
    *["make_list", "pluralize", "pprint", "rjust", "slice", "slugify", "title", "truncatechars", "truncatewords"],
    *["upper", "wordcount", "wordwrap", "yesno"],
]
_WIDE = {filters.filters[name] for name in ("center", "ljust", "rjust", "floatformat")}
_JOIN = filters.filters["join"]
_DEFAULTS = {filters.filters[name] for name in ("default", "default_if_none")}
_CONSTANTS = {"True", "False", "None"}
_DICT_METHODS: dict[str, Callable[[dict[Any, Any]], list[Any]]] = {
    "items": lambda value: list(value.items()),
    "keys": lambda value: list(value),
    "values": lambda value: list(value.values()),
}


class RenderError(Exception):
    """The text cannot be rendered with these values; `line` is the template's, if known, `name` the variable's."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        self.name = name
        self.line: int | None = None
        super().__init__(message)


class SealedContext(Context):
    """The values of one rendering, and the work that it has done."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        # Independent of the active locale: the same values give the same text on every worker.
        super().__init__(dict(values), autoescape=False, use_l10n=False, use_tz=False)
        self.work = 0
        self.unknown: RenderError | None = None

    def spend(self, amount: int) -> None:
        self.work += amount
        if self.work > MAX_WORK:
            raise RenderError("the text grows too long or loops too often; use fewer or shorter values")

    def charged(self, value: Any) -> Any:
        self.spend(STEP + (len(value) if isinstance(value, str | list | tuple | dict) else 0))
        return value


class SealedTemplate:
    """A parsed text. Raises TemplateSyntaxError; its `token`, if any, has the line."""

    def __init__(self, text: str) -> None:
        _check_marks(text)
        self.engine = _ENGINE  # read by Django from the template of a context
        parser = _SealedParser(Lexer(text).tokenize(), {}, [_LIBRARY], Origin("instructions"))
        self.nodelist = parser.parse()
        self.used = {name: line for name, line in parser.used.items() if name not in parser.bound | _CONSTANTS}

    def render(self, values: Mapping[str, Any]) -> str:
        """Raises RenderError, and errors of filters on values that they do not support."""
        context = SealedContext(values)
        this: Any = self
        with translation.override("en"), context.render_context.push_state(this), context.bind_template(this):
            text = "".join([self.nodelist.render(context)])  # a plain str: Django's SafeString would count as safe HTML
        if context.unknown is not None:  # the comparisons of `if` swallow every exception
            raise context.unknown
        context.spend(0)
        return text


def _check_marks(text: str) -> None:
    """Before the lexer runs: it takes quadratic time for unclosed marks, and blocks all other threads."""
    unclosed = 0
    for line in text.split("\n"):
        for opening, closing in (("{{", "}}"), ("{%", "%}"), ("{#", "#}")):
            unclosed += line.count(opening, line.rfind(closing) + 1)
    if unclosed > MAX_UNCLOSED:
        raise TemplateSyntaxError(
            f"{unclosed} marks {{{{, {{% or {{# are not closed on their line; at most {MAX_UNCLOSED} may be open"
        )


class _SealedParser(Parser):
    """Notes the names that a text uses and binds; its expressions are sandboxed, its nodes metered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.line: int = 1
        self.used: dict[str, int] = {}  # the line of the first use
        self.bound: set[str] = set()

    def next_token(self) -> Any:
        token = super().next_token()
        self.line = token.lineno or 1
        return token

    def compile_filter(self, token: str) -> FilterExpression:
        expression = _SealedExpression(token, self)
        for variable in expression.variables:
            if variable.lookups:
                self.used.setdefault(variable.lookups[0], self.line)
        return expression

    def find_filter(self, filter_name: str) -> Any:
        if filter_name not in self.filters:
            raise TemplateSyntaxError(f"there is no filter {filter_name!r} here; there are: {', '.join(FILTERS)}")
        return super().find_filter(filter_name)

    def invalid_block_tag(self, token: Any, command: str, parse_until: Any = None) -> Any:
        wanted = f"expected {' or '.join(parse_until)}" if parse_until else f"there are: {', '.join(TAGS)}"
        raise self.error(token, TemplateSyntaxError(f"there is no tag {command!r} here; {wanted}"))

    def extend_nodelist(self, nodelist: NodeList, node: Node, token: Any) -> None:
        self.bound |= _bound_by(node)
        super().extend_nodelist(nodelist, _Metered(node, token.lineno), token)
        node.token = token


class _Metered(Node):
    """Charges for a node's output, and adds the line to its errors."""

    child_nodelists = ()

    def __init__(self, node: Node, line: int) -> None:
        self.node, self.line = node, line

    def render_annotated(self, context: Any) -> Any:
        if not isinstance(context, SealedContext):  # `verbatim` renders its text while it is parsed
            return self.node.render_annotated(context)
        try:
            return context.charged(self.node.render_annotated(context))
        except Exception as error:
            if getattr(error, "line", None) is None:
                error.line = self.line  # type: ignore[attr-defined]
            raise


class _SealedExpression(FilterExpression):
    """A variable and its filters, without Python's attributes and translations; each step is charged."""

    def __init__(self, token: str, parser: Parser) -> None:
        super().__init__(token, parser)
        operands = [self.var, *(arg for _, args in self.filters for _, arg in args)]
        self.variables = [value for value in operands if isinstance(value, Variable)]
        translated = any(isinstance(value, Promise) for value in operands) or any(v.translate for v in self.variables)
        if translated:
            raise TemplateSyntaxError("translations, _(…), are not available here")

    def resolve(self, context: Any, ignore_failures: bool = False) -> Any:
        lenient = ignore_failures or bool(self.filters and self.filters[0][0] in _DEFAULTS)
        value = context.charged(_resolve(self.var, context, lenient))
        for function, args in self.filters:
            arguments = [_resolve(arg, context, False) for _, arg in args]
            _check_growth(function, value, arguments, context)
            # Without autoescape: else they would mark their output as safe HTML.
            keywords = {"autoescape": False} if getattr(function, "needs_autoescape", False) else {}
            value = context.charged(function(value, *arguments, **keywords))
        return value


def _resolve(source: Any, context: SealedContext, lenient: bool) -> Any:
    if not isinstance(source, Variable):
        return source
    if source.lookups is None:
        return source.literal
    root, *rest = source.lookups
    try:
        value = context[root]
    except KeyError:
        context.unknown = context.unknown or RenderError(f"{root!r} has no value here", name=root)
        raise context.unknown from None
    for bit in rest:
        try:
            value = _step(value, bit)
        except (KeyError, IndexError, ValueError, TypeError):
            if lenient:
                return None
            raise RenderError(f"{source.var!r} has no value: there is no {bit!r} in it", name=root) from None
    return value


def _step(value: Any, bit: str) -> Any:
    """One part of a dotted name: of a dict or a list."""
    if isinstance(value, dict):
        if bit in value:
            return value[bit]
        return _DICT_METHODS[bit](value)
    if isinstance(value, list | tuple):
        return value[int(bit)]
    raise TypeError(bit)


def _check_growth(function: Any, value: Any, arguments: list[Any], context: SealedContext) -> None:
    """Before the filter allocates it."""
    if function is _JOIN and isinstance(value, list | tuple | str):
        context.spend(len(value) * len(str(arguments[0])))
    if function in _WIDE:
        for width in arguments:
            digits = "".join(filter(str.isdecimal, str(width)))
            if len(digits) > 9 or int(digits or 0) > MAX_WIDTH:
                raise RenderError(f"{width!s:.20} is too much for {function.__name__}; at most {MAX_WIDTH}")


def _bound_by(node: Node) -> set[str]:
    if isinstance(node, ForNode):
        return {*node.loopvars, "forloop"}
    if isinstance(node, WithNode):
        return set(node.extra_context)
    name = node.variable_name if isinstance(node, CycleNode) else getattr(node, "asvar", None)
    return {name} if name and isinstance(node, CycleNode | FirstOfNode) else set()


def _library() -> Library:
    library = Library()
    library.tags = {name: tags.tags[name] for name in TAGS}
    library.filters = {name: filters.filters[name] for name in FILTERS}
    return library


_LIBRARY = _library()
_ENGINE = Engine(loaders=[], autoescape=False)
_ENGINE.template_builtins = [_LIBRARY]
_ENGINE.template_libraries = {}
