"""What a function's docstring says of it: the description for the model, and a line for each parameter.

Reads Google style ("Args:", "name (type): text") and reST style (":param type name: text").
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_SECTION = re.compile(r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises):\s*\Z")
_PARAMETER_SECTIONS = {"Args", "Arguments", "Parameters", "Params"}
_GOOGLE = re.compile(r"\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)\Z")
_REST_PARAMETER = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+):\s*(?P<text>.*)\Z")
_REST_FIELD = re.compile(r":\w+[^:]*:")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring taken apart."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(function: Callable[..., Any]) -> Docstring:
    """Take a function's docstring apart; without one everything is empty."""
    reader = _Reader()
    for line in inspect.cleandoc(getattr(function, "__doc__", None) or "").splitlines():
        reader.read(line)
    return Docstring(
        description="\n".join(reader.description).strip(),
        parameters={name: " ".join(lines).strip() for name, lines in reader.parameters.items()},
    )


class _Reader:
    """One pass over the lines. `_current` is the parameter that a continuation line belongs to."""

    def __init__(self) -> None:
        self.description: list[str] = []
        self.parameters: dict[str, list[str]] = {}
        self._section: str | None = None  # None: still in the description
        self._indent: int | None = None  # of the parameter names in a Google section
        self._current: list[str] | None = None

    def read(self, line: str) -> None:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and indent == 0 and self._begin(text):
            return
        if self._section is None:
            self.description.append(line)
        elif self._section in _PARAMETER_SECTIONS:
            self._google(text, indent)
        elif self._current is not None and text:
            self._current.append(text)

    def _begin(self, text: str) -> bool:
        """Whether an unindented line opens something; text after a section is description again."""
        if section := _SECTION.match(text):
            self._section, self._indent, self._current = section[1], None, None
            return True
        if parameter := _REST_PARAMETER.match(text):
            self._section = "rest"
            self._current = self.parameters[parameter["name"]] = [parameter["text"]]
            return True
        if _REST_FIELD.match(text):
            self._section, self._current = "rest", None
            return True
        self._section, self._current = None, None
        return False

    def _google(self, text: str, indent: int) -> None:
        if not text:
            return
        if self._indent is None:
            self._indent = indent
        entry = _GOOGLE.match(text) if indent <= self._indent else None
        if entry:
            self._current = self.parameters[entry["name"]] = [entry["text"]]
        elif self._current is not None:
            self._current.append(text)
