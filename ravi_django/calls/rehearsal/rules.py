"""The rehearsal model's rules: they map a conversation to text or tool calls. They recognize arithmetic; they do not
compute it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ravi_django.kernel.chat import ChatMessage, Role
from ravi_django.kernel.content import ToolResultBlock, ToolUseBlock
from ravi_django.kernel.llm import GenerationOptions

LABEL = "[rehearsal] "  # marks its text as not from a real model

Schemas = Mapping[str, Mapping[str, Any]]
ToolRequest = tuple[str, dict[str, Any]]  # name and arguments

_AMOUNT = r"[$€£]?\s*(?P<amount>\d[\d,]*(?:\.\d+)?)(?:\s*(?:dollars?|euros?|pounds?|usd|eur|gbp|[$€£]))?"
_INVOICES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\binvoice\s+(?:of|for|over)\s+{_AMOUNT}\s+to\s+(?P<customer>[^\n.!?,;]+)",
        rf"\binvoice\s+to\s+(?P<customer>[^\n!?,;]+?)\s+(?:of|for|over)\s+{_AMOUNT}",
        rf"\bsend\s+(?P<customer>[^\n!?,;]+?)\s+an\s+invoice\s+(?:of|for|over)\s+{_AMOUNT}",
        rf"\binvoice\s+(?P<customer>[^\n!?,;]+?)\s+(?:for|over)\s+{_AMOUNT}",
    )
)
_MAIL = re.compile(r"\bmail\s+to\s+(?P<to>[^\s@:,;]+@[^\s@:,;]+)[\s:,]+(?P<text>\S.*)", re.IGNORECASE | re.DOTALL)
_TIME = re.compile(r"\bwhat(?:'s|\s+is)?\s+the\s+time\b|\btime\s+is\s+it\b|\bcurrent\s+time\b|\btoday's\s+date\b", re.I)
_MEMORY = re.compile(
    r"\bwhat\s+(?:did|have)\s+(?:i|we)\b.*\b(?:say|said|ask|asked|tell|told|write|written|talk)"
    r"|\bmy\s+(?:last|previous)\s+(?:message|question)\b|\bremember\b",
    re.IGNORECASE | re.DOTALL,
)
_FAILED = re.compile(
    r"\b(?:denied|declined|refused|rejected|skipped|not approved|failed|cancelled|interrupted)\b", re.I
)
_CHANGED = re.compile(r"^\[(?P<who>a person(?: \([^\n]*?\))?) changed the arguments of this call[^\n]*\]\s*")
_ADVICE = re.compile(r"; (?:do not call it again unchanged|go on without it)$")  # the end of a refusal
_VALUES = re.compile(r"[\"“]([^\"”]+)[\"”]|(?<![\w.,-])([\w-]*\d(?:[\w-]|,\d{3})*(?:\.\d+)?)")
_FORMS = {
    "integer": re.compile(r"[\d,]+"),
    "number": re.compile(r"[\d,]+(\.\d+)?"),
    "string": re.compile(r".+", re.DOTALL),
}
_HANDOFF = "handoff_"
_AT_ONCE = 2  # agents to delegate to at once
_COMMON = frozenset(
    {"the", "and", "for", "it", "its", "that", "this", "what", "with", "you", "your", "are", "agent", "task"}
)
_MAX_QUOTE = 300  # characters
MOST_READ = 2000  # characters of a message: some of the patterns above take quadratic time


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of the conversation."""

    text: str  # the beginning of the user's last message
    earlier: str | None  # the beginning of the user's message before it
    results: tuple[tuple[ToolUseBlock | None, ToolResultBlock], ...]  # since then, with their calls
    whole: str = ""  # the user's last message


def read_situation(messages: Sequence[ChatMessage]) -> Situation:
    spoken = [index for index, message in enumerate(messages) if message.role is Role.USER and message.text]
    last = spoken[-1] if spoken else 0
    since = messages[last:]
    calls = {call.call_id: call for message in since for call in message.tool_calls}
    results = tuple(
        (calls.get(block.call_id), block)
        for message in since
        for block in message.content
        if message.role is Role.TOOL and isinstance(block, ToolResultBlock)
    )
    return Situation(
        text=messages[last].text[:MOST_READ].strip() if spoken else "",
        earlier=messages[spoken[-2]].text[:MOST_READ].strip() if len(spoken) > 1 else None,
        whole=messages[last].text if spoken else "",
        results=results,
    )


def choose_calls(situation: Situation, options: GenerationOptions) -> list[ToolRequest]:
    """The tool calls to make; none means to answer. A forced tool is always called."""
    tools: Schemas = {schema["name"]: schema for schema in options.tool_schemas}
    choice = options.tool_choice
    if choice == "none" or not tools:
        return []
    if choice is not None and choice in tools:
        fitting = [call for call in _wanted(situation.text, {choice: tools[choice]}) if call[0] == choice]
        return fitting[:1] or [(choice, sensible_arguments(tools[choice], situation.text))]
    if situation.results and choice != "required":
        return []
    wanted = _wanted(situation.text, tools)
    if not wanted and choice == "required":
        first = next(iter(tools))
        wanted = [(first, sensible_arguments(tools[first], situation.text))]
    return wanted


def answer(situation: Situation) -> str:
    if situation.results:
        return " ".join(_report(call, result) for call, result in situation.results)
    if not situation.text:
        return "I am the offline rehearsal model. Say something and I will answer by rule."
    earlier = situation.earlier
    if _MEMORY.search(situation.text):
        return f'Before this you said: "{_quote(earlier)}"' if earlier else "This is the first thing you said to me."
    before = f' Before that you said: "{_quote(earlier)}".' if earlier else ""
    return f'You said: "{_quote(situation.text)}".{before} I am an offline stand-in for a real model.'


def sensible_arguments(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Arguments that fit a tool's JSON schema, made from the user's text."""
    parameters = schema.get("parameters") or {}
    properties = parameters.get("properties") or {}
    numbers = itertools.chain(
        (_number(digits) for digits in re.findall(r"\d[\d,]*(?:\.\d+)?", text)), itertools.repeat(1)
    )
    required = parameters.get("required") or ()
    return {name: _value_for(properties.get(name) or {}, text, next(numbers)) for name in required}


def _wanted(text: str, tools: Schemas) -> list[ToolRequest]:
    if handoffs := [name for name in tools if name.startswith(_HANDOFF)]:
        return _delegations(text, tools, handoffs)
    if "send_invoice" in tools and (invoice := _invoice(text)):
        return [("send_invoice", invoice)]
    if "send_mail" in tools and (mail := _MAIL.search(text)):
        return [("send_mail", mail.groupdict())]
    if "calculator" in tools and (expressions := find_expressions(text)):
        return [("calculator", {"expression": expression}) for expression in expressions]
    if "current_time" in tools and _TIME.search(text):
        return [("current_time", {})]
    return _from_text(text, tools)


def _from_text(text: str, tools: Schemas) -> list[ToolRequest]:
    """The tool whose name and arguments share the most words with the text, if the text has its required arguments:
    "Where is order 7?" is `order_status(order_id=7)`."""
    stems, best, most = _stems(text), [], 0
    for name, schema in tools.items():
        required = (schema.get("parameters") or {}).get("required") or ()
        shared = len(stems & _stems(" ".join([name, *required])))
        fits = shared > most and (required or _stems(name) <= stems)
        if fits and (arguments := _arguments_in(text, schema, required)) is not None:
            best, most = [(name, arguments)], shared
    return best


def _arguments_in(text: str, schema: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any] | None:
    """Each a number, an option, a quoted text or a word with a digit; first those behind the argument's name."""
    arguments: dict[str, Any] = {}
    values = [quoted or plain for quoted, plain in _VALUES.findall(text)]
    for name in required:
        about = schema["parameters"]["properties"].get(name) or {}
        form = _FORMS.get(about.get("type", ""))
        options = [str(one) for one in about["enum"] if str(one) in text] if "enum" in about else values
        near = re.search(rf"\b{re.escape(name.partition('_')[0])}\W+(\w[\w.-]*\w|\w)", text, re.IGNORECASE)
        if about.get("type") == "string" and "enum" not in about:  # a number elsewhere in the text is not a text
            options = [one for one in values if not _FORMS["number"].fullmatch(one) or (near and near[1] == one)]
        if not (fitting := [one for one in options if form and form.fullmatch(one)]):
            return None
        value = near[1] if near and near[1] in fitting else fitting[0]
        values = [one for one in values if one != value]
        arguments[name] = value if about["type"] == "string" else _number(value)
    return arguments


def _delegations(text: str, tools: Schemas, handoffs: Sequence[str]) -> list[ToolRequest]:
    """Delegate to up to two agents whose name or description shares a word with the text; else to the first agent."""
    stems = _stems(f"{text} calculate" if find_expressions(text) else text)

    def fit(name: str) -> int:
        return len(stems & _stems(f"{name.removeprefix(_HANDOFF)} {tools[name].get('description', '')}"))

    fitting = sorted((name for name in handoffs if fit(name)), key=fit, reverse=True)[:_AT_ONCE]
    return [(name, _task(tools[name], text)) for name in handoffs if name in (fitting or handoffs[:1])]


def _stems(text: str) -> set[str]:
    """The words without endings, roughly: "write", "writes" and "writing" are equal."""
    tokens = set(re.findall(r"\w{3,}", text.lower().replace("_", " "))) - _COMMON
    return {re.sub(r"(?:ing|ers?|es|ed|s|e)$", "", word) for word in tokens}


def _task(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    properties = (schema.get("parameters") or {}).get("properties") or {}
    return {"task": text} if "task" in properties or not properties else sensible_arguments(schema, text)


def _invoice(text: str) -> dict[str, Any] | None:
    for pattern in _INVOICES:
        if match := pattern.search(text):
            customer = re.sub(r"\s+please$", "", match["customer"].strip(" \"'"), flags=re.IGNORECASE)
            return {"customer": customer, "amount": _number(match["amount"])}
    return None


def _report(call: ToolUseBlock | None, result: ToolResultBlock) -> str:
    name = call.tool_name if call else "the tool"
    text = _ADVICE.sub("", result.text.strip().removeprefix(LABEL).rstrip(".")) or "no result"
    if (changed := _CHANGED.match(text)) is not None:
        done = text[changed.end() :] or "no result"
        return f"{_attempt(name, call)} was changed by {changed['who']}: {done}."
    if name.startswith(_HANDOFF):
        agent = name.removeprefix(_HANDOFF).replace("_", " ")
        return f"{agent} gave no answer: {text}." if result.is_error else f"{agent} says: {text}."
    if result.is_error or _FAILED.search(text):
        return f"{_attempt(name, call)} did not happen: {text}."
    if name == "calculator" and call is not None:
        return f"{call.arguments.get('expression')} = {text}."
    return f"{_attempt(name, call)} is done: {text}."


def _attempt(name: str, call: ToolUseBlock | None) -> str:
    if name == "send_invoice" and call is not None:
        return f"The invoice of {call.arguments.get('amount')} to {call.arguments.get('customer')}"
    if name == "send_mail" and call is not None:
        return f"The mail to {call.arguments.get('to')}"
    return f"The call of {name}"


def _value_for(schema: Mapping[str, Any], text: str, number: float) -> Any:
    if options := schema.get("enum"):
        return options[0]
    match schema.get("type", "string"):
        case "number":
            return number
        case "integer":
            return int(number)
        case "boolean":
            return False
        case "array":
            return []
        case "object":
            return {}
        case _:
            return text


def _number(text: str) -> int | float:
    value = float(text.replace(",", ""))
    return int(value) if value.is_integer() else value


def _quote(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= _MAX_QUOTE else f"{text[:_MAX_QUOTE]}…"


_DATES = re.compile(r"\b\d{4}-\d{1,2}-\d{1,2}\b")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_PERCENT_OF = re.compile(r"(\d)\s*(?:%|percent)\s+of\s+(?=[\d(])", re.IGNORECASE)
_OPERATORS = tuple(
    (re.compile(pattern, re.IGNORECASE), symbol)
    for pattern, symbol in (
        (r"\bplus\b|\badded to\b", "+"),
        (r"\bminus\b", "-"),
        (r"\btimes\b|\bmultiplied by\b|\u00d7|(?<=\d)\s*x\s*(?=[\d(])", "*"),
        (r"\bdivided by\b|(?<=\d)\s+over\s+(?=[\d(])|\u00f7", "/"),
        (r"\bto the power of\b|\^", "**"),
        (r"\bsquared\b", "** 2"),
        (r"\bcubed\b", "** 3"),
        (r"\u2212", "-"),
    )
)
_RUN = re.compile(r"[-+(\s]*\d[\d\s.()+\-*/%]*")
_MAX_LENGTH = 200
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)


def find_expressions(text: str) -> list[str]:
    """Expressions with at least one operator, in Python's notation: "17 plus 4" gives ["17 + 4"]."""
    text = _PERCENT_OF.sub(r"\1 / 100 * ", _THOUSANDS.sub("", _DATES.sub(" ", text)))
    for pattern, symbol in _OPERATORS:
        text = pattern.sub(f" {symbol} ", text)
    expressions = (_longest_expression(match.group()) for match in _RUN.finditer(text))
    return [expression for expression in expressions if expression]


def _longest_expression(run: str) -> str:
    """The longest prefix of `run` that is arithmetic, without full stops and unmatched brackets at its end."""
    run = " ".join(run[:_MAX_LENGTH].split())
    for start in range(len(run)):
        if run[start] not in "(-0123456789":
            continue
        for end in range(len(run), start, -1):
            if _is_arithmetic(run[start:end]):
                return run[start:end].strip()
        if run[start].isdigit():
            break  # do not start within a number
    return ""


def _is_arithmetic(text: str) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    return any(isinstance(node, ast.BinOp) for node in nodes) and all(isinstance(node, _NODES) for node in nodes)
