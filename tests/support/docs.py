"""The code that a page of the docs shows, to be run by a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Page:
    """`docs/<name>.md`. Its blocks of code begin with a comment, their name."""

    def __init__(self, name: str) -> None:
        self.name = f"docs/{name}.md"
        self.text = (ROOT / self.name).read_text()

    def code(self, name: str, language: str = "python") -> str:
        found = re.search(rf"```{language}\n(?:#|//) {re.escape(name)}\n(.*?)```", self.text, re.DOTALL)
        assert found, f"{self.name} has no block {name}"
        return found.group(1)

    def run(self, name: str) -> dict[str, Any]:
        """What the block defines."""
        names: dict[str, Any] = {"__name__": name}
        exec(compile(self.code(name), name, "exec"), names)
        return names
