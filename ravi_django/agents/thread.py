"""One session in one run of an agent."""

from __future__ import annotations

from dataclasses import dataclass

from ravi_django.agents.transcript import Transcript


@dataclass(slots=True)
class Thread:
    session_id: str
    messages: Transcript  # system message, history, and what this run has added
    stored: int = 0  # how many turns of this run were handed to the history
