"""Values that a tool may return instead of a result: a pause, or the end of its agent's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ravi_django.kernel.contracts import RunHandle
from ravi_django.kernel.identity import AgentId
from ravi_django.kernel.messages import Message


@dataclass(frozen=True, slots=True)
class PauseForInputResult:
    """Ask a person, then call the tool again with the answer in its parameter annotated `HumanInput`.

    request: the question, or several as {key: question}. choices: texts to choose from, for a single question. context:
    background for the person. timeout: seconds or a timedelta until the request expires; an expired one is not consent.
    to: the recipients, an address or several (see Addressees); the run's owner unless the site says otherwise.
    """

    request: str | Mapping[str, str]
    choices: Sequence[str] | None = None
    context: str = ""
    timeout: float | timedelta | None = None
    to: Any = None


@dataclass(frozen=True, slots=True)
class PauseForChildResult:
    """Wait for the run that the tool has spawned; its outcome is the tool's result. The tool is not called again.

    message: the one that the child was booted with or sent, to wait for its reply; None waits for the child's end.
    timeout: seconds, without the time that people take to answer the child's requests.
    """

    handle: RunHandle  # as `ctx.spawn` returned it
    message: Message | None = None
    timeout: float | timedelta | None = None


@dataclass(frozen=True, slots=True)
class FinishAgentResult:
    """Hand over: the agent `target` takes this one's run, session, depth and caller, and answers in its place.

    task: its task; None gives it the message that this agent was asked with.
    context: whether it reads what the session's person and other agents have said.
    """

    target: AgentId | str
    task: Message | str | None = None
    context: bool = True
