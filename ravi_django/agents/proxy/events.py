"""The prompt of a generator agent, and the events that it may yield. See `BaseAgentProxy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ravi_django.agents.messages import message_to_chat
from ravi_django.kernel import AgentId, DataPayload, Message


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to the agent.

    message: unchanged. depth: 0 for a run that was submitted, 1 for its child, and so on.
    """

    message: Message
    depth: int = 0

    @property
    def text(self) -> str:
        """The payload as text: chat, or JSON."""
        return message_to_chat(self.message).text

    @property
    def data(self) -> dict[str, Any]:
        """The payload of a data message; empty for any other."""
        return dict(self.message.payload.data) if isinstance(self.message.payload, DataPayload) else {}

    @property
    def sender(self) -> AgentId | None:
        """The agent that sent it; None for a person or a program."""
        return self.message.sender

    @property
    def request_id(self) -> str:
        """The message's id: the same on every replay."""
        return self.message.id

    @property
    def metadata(self) -> dict[str, Any]:
        """The message's metadata, a copy."""
        return dict(self.message.metadata)


@dataclass(frozen=True, slots=True)
class ChatOutput:
    """Text for the stream. Consecutive outputs belong together. It needs no commit: its row is written with the
    next."""

    text: str  # a part of the answer


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call one of the agent's tools. The yield returns its ToolExecutionResult, as `self.ctx.tool` does."""

    name: str  # of the tool
    arguments: Mapping[str, Any] = field(default_factory=dict)  # JSON, by parameter


@dataclass(frozen=True, slots=True)
class SubagentCall:
    """Delegate a task to another agent as a child run. The yield returns the AskOutcome.

    timeout: seconds, without the time that people take to answer the child's requests; None waits forever.
    """

    agent: AgentId | str  # its address
    task: Message | str  # a text, or a whole message
    timeout: float | timedelta | None = None


@dataclass(frozen=True, slots=True)
class WaitForInput:
    """Ask a person. The yield returns a HumanInput; the run is suspended until then.

    request: the question, or several as {key: question}, all open at once. choices: texts to choose from, only for a
    single question; without `free_text` the answer is one of them. context: background for the person. timeout: seconds
    until it expires; an expired question is not consent. to: the recipients, an address or several (see Addressees); by
    default the site's, else the run's owner.
    """

    request: str | Mapping[str, str]
    choices: Sequence[str] | None = None
    context: str = ""
    free_text: bool = True
    timeout: float | timedelta | None = None
    to: Any = None


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """End the turn; later code does not run. result: a text, JSON, or an instance of `result_model`; None: the turn's
    last output."""

    result: Any = None
