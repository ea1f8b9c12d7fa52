"""The two contracts that everything else serves: an agent, and the context of its run.

Start here; then read `engine/worker/drive.py` (one lease of a run).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import UUID

from ravi_django.kernel.chat import ChatMessage
from ravi_django.kernel.identity import AgentId, TopicId
from ravi_django.kernel.llm import ChatModel, GenerationOptions, ModelResponse
from ravi_django.kernel.messages import Message, ToolExecutionResult, as_text, plain_text
from ravi_django.kernel.people import HumanInput
from ravi_django.kernel.supervision import Priority, RunMeta
from ravi_django.kernel.tools import Risk


@runtime_checkable
class Agent(Protocol):
    """Anything with an address and a `run`. No base class, no state of a run on the instance.

    Optional attributes: `model` (a ChatModel, for `ctx.llm`), `tools` (a ToolRegistry or a list of tools, for
    `ctx.tool`) and `inbox_limit`: the code gets at most so many messages at a time, and fewer large ones. `ctx.receive`
    gives the others, or the next call of `run`.
    """

    id: AgentId  # the address, the same in every process

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Handle the messages. May be called again from the top after any interruption: then the journal answers every
        effect that went through `ctx`, so keep all other code deterministic.

        A returned value becomes the run's output when nothing was replied.
        """


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A spawned run."""

    run_id: str  # the UUID of the run
    agent_id: AgentId  # the agent that executes it


AskKind = Literal["replied", "timed_out", "target_failed", "target_cancelled"]


@dataclass(frozen=True, slots=True)
class AskOutcome:
    """How an ask ended. Only "replied" has an answer: after "timed_out" the target may still run."""

    kind: AskKind  # how it ended
    result: Any = None  # the JSON of the reply or of the run's output; read `output` or `text`
    handle: RunHandle | None = None  # the target's run

    @property
    def output(self) -> Any:
        """The answer: a text, or the JSON value of a typed result or a program. None without one."""
        if self.kind != "replied":
            return None
        text = plain_text(self.result)
        return self.result if text is None else text

    @property
    def text(self) -> str:
        """The answer as a text, of any agent; JSON of any other value. Empty without one."""
        return "" if self.output is None else as_text(self.output)


class RunContext(Protocol):
    """The effects of an agent. Every method that touches the world is journaled: done once, replayed after a crash."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    @property
    def session_id(self) -> str:
        """The id of the conversation."""

    @property
    def agent_id(self) -> AgentId:
        """The agent's address."""

    @property
    def user_id(self) -> str | None:
        """The primary key of the run's owner, as text; None for nobody."""

    @property
    def user(self) -> Any:
        """The owner as the site's user object, read now, for a tool that is a plain `def`. None for nobody, or a
        deleted user. In async code: `await ctx.auser()`. It is not recorded: an agent's code decides on it inside a
        tool or by `ctx.pin`."""

    async def auser(self) -> Any:
        """`user` for async tools and agents."""

    @property
    def tenant_id(self) -> str:
        """The run's tenant; empty without one."""

    @property
    def meta(self) -> RunMeta:
        """What the run was submitted with: metadata, deadline, supervision."""

    @property
    def state(self) -> Any:
        """The JSON that the previous generation gave to `continue_as_new`; None in the first and after a handoff."""

    @property
    def idempotency_key(self) -> str:
        """Inside a tool: the same for every attempt of this call, so that the other side can deduplicate."""

    async def llm(
        self,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
        model: ChatModel | None = None,
    ) -> ModelResponse:
        """Call the agent's model. Raises ModelError with the provider's message; transient errors are retried."""

    async def tool(self, name: str, /, **arguments: Any) -> ToolExecutionResult:
        """Call one of the agent's tools. A tool's error or bad arguments come back as `status == "error"`."""

    async def spawn(
        self,
        target: AgentId | str,
        boot: Message | str | None = None,
        *,
        priority: Priority | None = None,
        memory: str = "none",
    ) -> RunHandle:
        """Start a child run, in a session of its own, with this run's owner, tenant, deadline and share of the tree's
        budgets, and by default its priority.

        `memory`: "conversation" lets the child read the messages and answers of its agent in earlier child runs of the
        root run's conversation, and keeps its turns for later ones. With "none" its turns are deleted when it ends.

        Raises AgentNotFoundError, and SpawnDeniedError when the tree is too deep or full: in a full tree HIGH and
        CRITICAL children pause the lowest run that is strictly lower.
        """

    async def handoff(
        self,
        target: AgentId | str,
        task: Message | str | None = None,
        *,
        answers: Message | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
        context: bool = True,
    ) -> None:
        """End here without a reply: `target` continues as this run, with its caller, session, depth and budgets. It
        answers the message `answers` of the inbox (by default the first without a reply). Without a `task` it gets that
        message; later messages of the inbox go along. Never returns.

        It reads what the session's person has said and was answered by any agent; with `context=False`, in this run,
        its own turns alone.

        This agent's live children are cancelled, as at any end of it. `closing` is awaited once no reason against the
        handoff is known: the agent stores its last turn there.

        Raises, recorded, AgentNotFoundError; ConflictError when the session has another active run of that agent;
        PermanentError when the task is larger than an input may be or lacks a required variable, or after as many
        handoffs as a tree may be deep. Raises InvalidInputError inside a tool, which returns a FinishAgentResult
        instead.
        """

    async def join(self, handle: RunHandle, *, timeout: float | timedelta | None = None) -> AskOutcome:
        """Wait for the end of a run that `spawn` has started. After the timeout it may still run."""

    async def ask(
        self,
        target: RunHandle | AgentId | str,
        message: Message | str,
        *,
        timeout: float | timedelta | None = None,
        memory: str = "none",
    ) -> AskOutcome:
        """Send a message and wait for its reply: to a run, or to an agent's address, for which a child run starts.
        `memory` of such a child: see `spawn`."""

    async def reply(self, message: Message, result: Any) -> None:
        """Answer a message. The last reply is also the run's output."""

    async def send(self, target: AgentId | RunHandle | TopicId | str, message: Message | str) -> None:
        """Deliver a message and go on. To a TopicId like `emit`."""

    async def emit(self, topic: TopicId | str, data: Any, *, id: str | None = None) -> None:
        """Publish to the present followers of `topic`, in the run's tenant: a text, JSON, or a Message, which keeps its
        id, correlation, causation and metadata.

        Once, however often the run is taken over. With an `id` (at most 200 characters) the run publishes it once,
        wherever its code does so again; a fork is another publisher.

        Raises ForbiddenError when the run's owner may not emit there, ConflictError when the id has another message,
        PermanentError when it is larger than an input may be or the last of too many publications that each followed
        from the one before, InvalidInputError that names the parameter.
        """

    async def follow(self, topic: TopicId | str, *, session: bool = False, every_s: int | timedelta = 0) -> None:
        """Have this agent follow `topic`, for the run's owner. Later publications come as a message to the
        agent's run in this session, where each also ends a wait for the signal `new_feed_item`, or start one. The
        follow outlives the run; following again changes nothing, and costs little.

        `session`: for this conversation alone, besides the agent's other follows. `every_s`: deliver at most once in so
        many seconds, all in one message; 0 keeps the value, which is first "each at once".

        Raises ForbiddenError when the run's owner may not, InvalidInputError that names the parameter.
        """

    async def unfollow(self, topic: TopicId | str, *, session: bool = False) -> None:
        """Stop following; with `session` that of this conversation alone. No error without such a follow."""

    async def update_follows(self, metadata: Mapping[str, Any]) -> None:
        """Put `metadata` (JSON) over that of this agent's follows: those of the run's owner, in this conversation and
        in general. Runs that deliveries start get it from now on. This run keeps its own."""

    async def sleep(self, duration: float | timedelta) -> None:
        """Wait for seconds or a timedelta. A waiting run is only a row."""

    async def sleep_until(self, when: datetime | timedelta | float) -> None:
        """Wait until a time, or for a timedelta or seconds."""

    async def sleep_until_signal(
        self,
        name: str,
        *,
        until: datetime | timedelta | float | None = None,
        timeout: float | timedelta | None = None,
        or_message: bool = False,
    ) -> Any:
        """Wait for a signal of this name, or take an earlier one: its payload, `{}` without one. None when `until` came
        first or `timeout` (seconds or a timedelta) has passed, or with `or_message` a message for `receive`."""

    def stay_awake(self) -> AbstractContextManager[None]:
        """Around what your code waits for itself (a lock, a thread, `asyncio.sleep`) beside a wait of `ctx` in another
        task: `with ctx.stay_awake(): ...`. The run is not suspended meanwhile."""

    async def receive(self) -> list[Message]:
        """The messages since those that the code got, oldest first; empty without any. It does not wait. Its messages
        count as seen: they are no next inbox of `run`.

        Raises InvalidInputError inside a tool: the agent's own code reads its messages.
        """

    def caused_by(self, message: Message) -> None:
        """Publications from here on follow from this message alone, not from all messages of the inbox. Chains of
        publications are counted that way."""

    async def ask_human(
        self,
        question: str,
        choices: Sequence[str] | None = None,
        context: str = "",
        free_text: bool = True,
        timeout: float | timedelta | None = None,
        to: Any = None,
        signal: str = "",
    ) -> HumanInput:
        """Ask a person and wait, however long that takes. The action is answer, skip, cancel or, `timeout` seconds
        later, expired. Only an "answer" has a text; no other action is a consent to anything.

        Without `free_text` the answer is one of `choices`. `to`: the recipients, an address or several (see
        Addressees); the run's owner unless the site says otherwise.

        `signal`: a name, `human_reply:…`, under which the site's own code may answer in a person's place. The first
        answer counts; that of a signal has the action "signal" and a `payload`. Use a name for one question at a time.

        Raises InvalidInputError that names the parameter.
        """

    async def approve(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        risk: Risk | str = Risk.HIGH,
        to: Any = None,
        call_id: str = "",
        schema: dict[str, Any] | None = None,
        description: str = "",
        timeout: float | timedelta | None = None,
    ) -> HumanInput:
        """Ask a person whether `tool` may be called with `arguments`, and wait, however long that takes. Act only if
        the decision `allows`; with "modified" use its `arguments`.

        A decision that stands for the session is used without asking. Denied, with the reason, without approvers (`to`,
        see Addressees; else the site's RAVI["ADDRESSEES"]["approval"]), when those are nobody at present, when the
        run's owner has no permission for the tool, and `timeout` seconds later. `schema` is the JSON schema for changed
        arguments, `description` the purpose of the tool, `call_id` the model's name for the call.

        An agent's tools of `approval_required_risk` and above are asked about automatically: this is for code that acts
        without them. Raises InvalidInputError that names the parameter.
        """

    async def set_state(self, value: dict[str, Any]) -> None:
        """Show the page of the run's user a state: an object of at most 64 KiB, in place of the one before. It is the
        conversation's. A change by the page comes back in the user's next message, as data.

        Raises InvalidInputError and InputTooLargeError.
        """

    def check(self) -> None:
        """Raise CancellationError when the run was cancelled or its deadline passed."""

    def now(self) -> datetime:
        """The journaled time, UTC."""

    def random(self) -> float:
        """In [0, 1), the same on every replay."""

    def uuid(self) -> UUID:
        """The same on every replay."""

    async def log(self, kind: str, data: Any = None) -> None:
        """Write a journal entry of the agent's own; it is written with the next effect's commit."""

    async def log_once(self, key: str, data: Any = None) -> None:
        """Write a journal entry of the agent's own, once in the run for each key."""

    async def pin(self, name: str, compute: Callable[[], Any]) -> Any:
        """The JSON value of `compute`, sync or async: computed once in the run, recorded for its replays."""

    def patched(self, name: str) -> bool:
        """False in a run that passed this place before a change of the code, else True. See docs/howto/live-code.md."""

    async def continue_as_new(self, state: Any = None) -> None:
        """Begin again with an empty journal. The next generation reads `state` as `ctx.state`, and its inbox has the
        messages that the code did not get. Never returns. Raises InvalidInputError when `state` is not JSON."""

    def scope(self, name: str, *, call_id: str = "") -> AbstractContextManager[None]:
        """Name the place of the calls inside, which their journal paths show."""
