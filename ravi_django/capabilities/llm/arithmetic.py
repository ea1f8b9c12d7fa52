"""Finds the sums in a sentence; calculates nothing."""

from __future__ import annotations

import ast
import re

_DATES = re.compile(r"\b\d{4}-\d{1,2}-\d{1,2}\b")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_PERCENT_OF = re.compile(r"(\d)\s*(?:%|percent)\s+of\s+(?=[\d(])", re.IGNORECASE)
_WORDS = tuple(
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
    for pattern, symbol in _WORDS:
        text = pattern.sub(f" {symbol} ", text)
    found = (_longest_expression(match.group()) for match in _RUN.finditer(text))
    return [expression for expression in found if expression]


def _longest_expression(run: str) -> str:
    """The longest start of `run` that reads as arithmetic: full stops and loose brackets fall off its end."""
    run = " ".join(run[:_MAX_LENGTH].split())
    for start in range(len(run)):
        if run[start] not in "(-0123456789":
            continue
        for end in range(len(run), start, -1):
            if _is_arithmetic(run[start:end]):
                return run[start:end].strip()
        if run[start].isdigit():
            break  # a start within a number would change it
    return ""


def _is_arithmetic(text: str) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    return any(isinstance(node, ast.BinOp) for node in nodes) and all(isinstance(node, _NODES) for node in nodes)
