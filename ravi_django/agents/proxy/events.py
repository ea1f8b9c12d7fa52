"""What a generator agent is given, and what it may yield. See `BaseAgentProxy`."""

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

    message: as it came. depth: 0 for a run that was submitted, 1 for a child of it, and so on.
    """

    message: Message
    depth: int = 0

    @property
    def text(self) -> str:
        """The payload as a text: what was said, or JSON."""
        return message_to_chat(self.message).text

    @property
    def data(self) -> dict[str, Any]:
        """The payload of a data message; empty for any other."""
        return dict(self.message.payload.data) if isinstance(self.message.payload, DataPayload) else {}

    @property
    def sender(self) -> AgentId | None:
        """The agent that asks; None for a person or a program."""
        return self.message.sender

    @property
    def request_id(self) -> str:
        """The message's id: the same on every replay."""
        return self.message.id

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.message.metadata)


@dataclass(frozen=True, slots=True)
class ChatOutput:
    """Text for whoever watches, a piece or the whole; pieces that follow each other belong together.

    It costs no commit of its own: its row is written with the next one.
    """

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call one of the agent's tools: the yield gives its ToolExecutionResult, as `self.ctx.tool` does."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubagentCall:
    """Have another agent do a task, as a child run: the yield gives the AskOutcome.

    timeout: seconds, not counting what people take to answer the child's requests; None waits for ever.
    """

    agent: AgentId | str
    task: Message | str
    timeout: float | timedelta | None = None


@dataclass(frozen=True, slots=True)
class WaitForInput:
    """Ask a person: the yield gives a ResumeWithInput. The run is nothing but rows until then.

    request: the question, or several as {key: question}, all of them open at once. choices: texts to choose from, for
    a single question; without `free_text` the answer is one of them. context: what the person should know. timeout:
    seconds until it expires; an expired one is no consent. to: who is asked, an address or several (see Addressees);
    the run's owner unless the site says otherwise.
    """

    request: str | Mapping[str, str]
    choices: Sequence[str] | None = None
    context: str = ""
    free_text: bool = True
    timeout: float | timedelta | None = None
    to: Any = None


@dataclass(frozen=True, slots=True)
class ResumeWithInput:
    """What a person answered.

    action: answer, skip, cancel or expired; of several questions the first that is no answer. Only an "answer" is a
    consent. text: of a single question. values: by key, the texts of several; those answered alone. by: who answered.
    """

    action: str
    text: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    by: str = ""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The request is answered: no code behind it runs. result: a text, JSON, or what `result_model` asks for; without
    one it is what the turn has output last."""

    result: Any = None
