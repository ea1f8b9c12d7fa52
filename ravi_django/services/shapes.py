"""The JSON of REST's input and output."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

from django.db.models import OuterRef, Subquery
from django.db.models.functions import Left
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ravi_django.agents.memory.transcript import STOPPED
from ravi_django.conf import conf
from ravi_django.engine.db import clock
from ravi_django.live.streams import hidden
from ravi_django.models import BoardTask, InboxMessage, Phase, Run, Session, Status, Turn
from ravi_django.runs import sessions
from ravi_django.runs.catalog import specs
from ravi_django.runs.lifecycle.submit import ON_BUSY
from ravi_django.runs.teams import board
from ravi_django.services.fields import (
    AgentField,
    BudgetField,
    ClientToolsField,
    ConversationField,
    IdField,
    InputField,
    NumberField,
    ObjectField,
    PriorityField,
    StrictSerializer,
    TextField,
    TimeField,
    UploadField,
    ValueField,
    WaitField,
)

ReadOnly = serializers.Serializer  # never takes input


class EmptySerializer(StrictSerializer):
    """An empty body, or `{}`."""


class RunErrorSerializer(ReadOnly[Any]):
    type = serializers.CharField()
    message = serializers.CharField()

    def to_representation(self, error: Any) -> dict[str, Any]:
        return {name: error.get(name, "") for name in ("type", "message")}


class CostField(serializers.FloatField):
    def __init__(self) -> None:
        super().__init__(source="*", allow_null=True, help_text="US dollars; null when a call's price is unknown")

    def to_representation(self, row: Any) -> Any:
        is_known = row.cost is not None and not getattr(row, "cost_unknown", False)
        return float(row.cost) if is_known else None


class UsageSerializer(ReadOnly[Any]):
    input_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Of the input tokens, read from the provider's cache")
    output_tokens = serializers.IntegerField()
    cost = CostField()
    estimated = serializers.BooleanField(
        source="usage_estimated", help_text="A part was counted here: the provider has not reported it"
    )


class RunSerializer(ReadOnly[Any]):
    id = IdField()
    agent = serializers.CharField(help_text="type/key")
    agent_version = serializers.IntegerField(
        allow_null=True, help_text="For an agent edited in the admin: the version of its spec"
    )
    session = IdField(source="session_id")
    status = serializers.ChoiceField(choices=Status.choices)
    output = serializers.CharField(
        allow_null=True,
        help_text="Null until completed; JSON for a typed result. In lists and trees the first 1,000 characters",
    )
    error = RunErrorSerializer(allow_null=True)
    usage = UsageSerializer(source="*")
    parent = IdField(source="parent_id", allow_null=True)  # type: ignore[assignment]
    root = IdField(source="tree_id", help_text="The root of its tree; its own id at the root")  # type: ignore[assignment]
    depth = serializers.IntegerField()
    forked_from = IdField(allow_null=True, help_text="The run whose journal it began with")  # type: ignore[assignment]
    waiting_on = WaitField(source="waits_for", allow_null=True, help_text="What it waits for, while it is suspended")
    priority = PriorityField()
    metadata = serializers.DictField()
    attempts = serializers.SerializerMethodField(help_text="Attempts of the present step; 0 before the run has started")
    created_at = TimeField()
    start_at = TimeField(allow_null=True, help_text="When it may start, while it is queued until a time")
    started_at = TimeField(allow_null=True)
    finished_at = TimeField(allow_null=True)

    def get_attempts(self, run: Run) -> int:
        return 0 if run.started_at is None else run.attempts + 1


class RunRowSerializer(RunSerializer):
    """A run in a list, with the first BEGINNING characters of its output. For rows that `read` has prepared."""

    BEGINNING = 1000
    output = serializers.CharField(source="beginning", allow_null=True)

    @classmethod
    def read(cls, rows: Any) -> Any:
        rows = rows.defer("output", "result_schema", "state", "client_tools")
        return rows.annotate(beginning=Left("output", cls.BEGINNING))


class RunDetailSerializer(RunSerializer):
    """One run, with the message that it began with. For rows that `read` has prepared."""

    output_schema = serializers.DictField(
        required=False, help_text="JSON Schema of a typed result, once the run has started"
    )
    input = serializers.ListField(
        child=serializers.DictField(),
        required=False,
        help_text="Content blocks of the chat message that a root run began with",
    )

    no_sign_of_worker = serializers.DictField(
        child=serializers.FloatField(),
        required=False,
        help_text="While a renewal of the lease is late: since_s, and takeover_in_s until another may claim",
    )

    def to_representation(self, run: Run) -> dict[str, Any]:
        message = {} if run.parent_id else (run.first_message or {}).get("payload", {}).get("message")  # type: ignore[attr-defined]
        extra = {"output_schema": specs.result_schema_of(run), "input": (message or {}).get("content")}
        extra["no_sign_of_worker"] = _no_sign_of_worker(run)
        return {**super().to_representation(run), **{name: value for name, value in extra.items() if value is not None}}

    @classmethod
    def read(cls, rows: Any) -> Any:
        first = InboxMessage.objects.filter(run=OuterRef("pk")).order_by("id")
        return rows.annotate(first_message=Subquery(first.values("body")[:1]))


def _no_sign_of_worker(run: Run) -> dict[str, float] | None:
    if run.status != Status.RUNNING or run.lease_expires_at is None:
        return None
    left = (run.lease_expires_at - clock.present()).total_seconds()
    since = conf.LEASE_S - left
    is_late = since > conf.HEARTBEAT_S * 1.5
    return {"since_s": round(since, 1), "takeover_in_s": max(0.0, round(left, 1))} if is_late else None


class OnBusyField(serializers.ChoiceField):
    """The handling of a message while the agent is at work in the session."""

    def __init__(self) -> None:
        text = "While the agent is at work in the session; see `submit`. By default as the site has it"
        super().__init__(list(ON_BUSY), required=False, allow_null=True, help_text=text)


class RunRequestSerializer(StrictSerializer):
    agent = AgentField()
    input = InputField()
    session = ConversationField(
        required=False,
        allow_null=True,
        help_text="The id of a session; or a name, new at first use. Else a new session",
    )
    idempotency_key = TextField(required=False, allow_null=True, max_length=200)
    priority = PriorityField(required=False)
    budget = BudgetField(required=False, allow_null=True)
    deadline = TimeField(required=False, allow_null=True)
    start_at = TimeField(required=False, allow_null=True, help_text="Queued until then; at once if it has passed")
    metadata = ObjectField(required=False, allow_null=True)
    on_busy = OnBusyField()
    client_tools = ClientToolsField(required=False, allow_null=True)


class CancelSerializer(StrictSerializer):
    reason = TextField(required=False, max_length=200, help_text="Shown as the run's error message")


class ForkSerializer(StrictSerializer):
    after_seq = NumberField(
        required=False,
        min_value=1,
        help_text="The last shared journal entry; the fork may begin earlier, where no call is open",
    )
    input = InputField(required=False, help_text="In place of `after_seq`: the message to begin with instead")
    idempotency_key = TextField(required=False, allow_null=True, max_length=200)


class FeedbackSerializer(StrictSerializer):
    score = serializers.ChoiceField([1, -1], help_text="1: good, -1: bad")
    text = TextField(required=False, allow_null=True, allow_blank=True, max_length=2000)


class OpinionSerializer(ReadOnly[Any]):
    score = serializers.IntegerField(allow_null=True, help_text="null: the user has not said")
    text = serializers.CharField()


class SignalSerializer(StrictSerializer):
    name = TextField(max_length=200)
    payload = ValueField(required=False, allow_null=True, default=None)
    idempotency_key = TextField(required=False, allow_null=True, max_length=200)


class EntryUsageSerializer(UsageSerializer):
    reasoning_tokens = serializers.IntegerField()

    def to_representation(self, row: Any) -> Any:
        return None if row.input_tokens is None else super().to_representation(row)


class EntrySerializer(ReadOnly[Any]):
    seq = serializers.IntegerField(help_text="From 1, without gaps")
    generation = serializers.IntegerField()
    path = serializers.CharField(help_text="The place in the agent's code; the same on every replay")
    attempt = serializers.IntegerField()
    phase = serializers.ChoiceField(choices=Phase.choices)
    kind = serializers.CharField()
    name = serializers.CharField()
    request = ValueField(allow_null=True)
    result = ValueField(allow_null=True)
    error = RunErrorSerializer(allow_null=True)
    hidden = serializers.BooleanField(required=False, help_text="True: its tool is visible only to staff")
    usage = EntryUsageSerializer(source="*", allow_null=True, help_text="Of a model call")
    started_at = TimeField()
    finished_at = TimeField()

    def to_representation(self, row: Any) -> dict[str, Any]:
        body = super().to_representation(row)
        if row.kind == "pinned" and row.name.startswith("instructions"):
            body["result"] = None  # rendered instructions, which only the admin shows
        return hidden.entry(body, whole=hidden.sees(self.context.get("user")))


class FramePageSerializer(ReadOnly[Any]):
    results = serializers.ListField(child=serializers.DictField(), help_text="Frames, as the websocket sends them")
    next_after = serializers.IntegerField(help_text="`after` of the next page")
    done = serializers.BooleanField(help_text="This is the last page")


class SessionSerializer(ReadOnly[Any]):
    id = IdField()
    title = serializers.CharField()
    name = serializers.CharField(help_text="As a program has submitted it; empty: none")
    agent = serializers.SerializerMethodField(help_text="The agent last spoken to, type/key")
    parent = IdField(source="parent_session_id", allow_null=True, help_text="Set for a child run's own session")  # type: ignore[assignment]
    created_at = TimeField()
    updated_at = TimeField()

    owner = serializers.CharField(source="owner.get_username", default=None, help_text="The owner's user name")

    def get_agent(self, session: Any) -> str | None:
        return session.agent or None


_BRANCH = {"type": "object", "properties": {name: {"type": "string", "format": "uuid"} for name in ("run", "session")}}


class SessionDetailSerializer(SessionSerializer):
    """One session, with the forks of its runs."""

    branches = serializers.SerializerMethodField(
        help_text="Of each message that was answered again or edited: its runs with their sessions, oldest first"
    )

    @extend_schema_field({"type": "array", "items": {"type": "array", "items": _BRANCH}})
    def get_branches(self, session: Session) -> list[list[dict[str, Any]]]:
        branches = sessions.branches_of(session, self.context["request"].user)
        return [[{"run": run.id, "session": run.session_id} for run in runs] for runs in branches]


class SessionRequestSerializer(StrictSerializer):
    title = TextField(required=False, allow_blank=True, max_length=200)
    agent = AgentField(required=False, allow_null=True)


class SessionRenameSerializer(StrictSerializer):
    title = TextField(allow_blank=True, max_length=200)


class TurnSerializer(ReadOnly[Any]):
    id = serializers.SerializerMethodField()
    role = serializers.ChoiceField(choices=["system", "user", "assistant", "tool"])
    content = serializers.ListField(child=serializers.DictField(), source="blocks", help_text="Content blocks")
    run = IdField(source="run_id", allow_null=True)
    interrupted = serializers.SerializerMethodField(help_text="The part of an answer that was shown before a stop")
    created_at = TimeField()

    def get_interrupted(self, turn: Turn) -> bool:
        return turn.name == STOPPED

    def get_id(self, turn: Turn) -> UUID:
        """Derived from the turn's position in its session."""
        return uuid5(turn.session_id, str(getattr(turn, "id_text", turn.position)))

    def to_representation(self, turn: Turn) -> dict[str, Any]:
        body = super().to_representation(turn)
        return body if hidden.sees(self.context.get("user")) else {**body, "content": hidden.blocks(turn.blocks)}


class BoardTaskSerializer(ReadOnly[Any]):
    id = IdField()
    session = IdField(help_text="The session of the root run")
    agent = serializers.CharField(help_text="The task's agent, type/key")
    label = serializers.CharField(help_text="The agent's name, for people")  # type: ignore[assignment]
    parent_agent = serializers.CharField(allow_null=True, help_text="The agent that delegated the task")
    run = IdField(allow_null=True, help_text="The run that created the task")
    number = serializers.IntegerField(help_text="From 1 for each agent of the conversation")
    title = serializers.CharField()
    detail = serializers.CharField()
    status = serializers.ChoiceField(choices=BoardTask.Status.choices)
    created_at = TimeField()
    updated_at = TimeField()

    def to_representation(self, task: BoardTask) -> dict[str, Any]:
        return board.as_json(task)


class MessageRequestSerializer(StrictSerializer):
    agent = AgentField(required=False, allow_null=True, help_text="The session's last agent if absent")
    text = TextField()
    idempotency_key = TextField(required=False, allow_null=True, max_length=200)
    on_busy = OnBusyField()


class ToolSerializer(ReadOnly[Any]):
    name = serializers.CharField()
    description = serializers.CharField()
    parameters = serializers.DictField(help_text="JSON Schema")
    risk = serializers.ChoiceField(choices=["safe", "high", "critical"])
    effect = serializers.ChoiceField(choices=["idempotent", "at_most_once", "transactional"])

    def to_representation(self, tool: dict[str, Any]) -> dict[str, Any]:
        """An agent with a class of the site may omit parts."""
        return {name: tool.get(name) for name in self.fields.keys()}  # noqa: SIM118 - the stubs


class VariableSerializer(ReadOnly[Any]):
    description = serializers.CharField(allow_blank=True)
    required = serializers.BooleanField()  # type: ignore[assignment]

    def to_representation(self, variable: dict[str, Any]) -> dict[str, Any]:
        """Without the default, which is a part of the instructions."""
        return {"description": variable.get("description", ""), "required": variable.get("required", False)}


class AgentSerializer(ReadOnly[Any]):
    agent = serializers.CharField(help_text="The address, type/key")
    type = serializers.CharField()
    key = serializers.CharField()
    namespace = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    model = serializers.CharField(allow_null=True)
    tools = ToolSerializer(many=True)
    version = serializers.IntegerField(
        allow_null=True, help_text="Of a spec edited in the admin; null for an agent in code"
    )
    welcome = serializers.CharField(allow_blank=True, help_text="Shown before the first message")
    starter_prompts = serializers.ListField(child=serializers.CharField(), help_text="Suggested first messages")
    variables = serializers.DictField(child=VariableSerializer(), help_text="By name, for a run's `metadata.variables`")
    result_schema = serializers.DictField(
        allow_null=True, help_text="JSON Schema of the answers; null when they are free text"
    )

    def get_fields(self) -> dict[str, Any]:
        """`class` cannot be the name of an attribute."""
        return {**super().get_fields(), "class": serializers.CharField(help_text="Python class")}


class UploadSerializer(StrictSerializer):
    file = UploadField(max_length=255)


class FileSerializer(ReadOnly[Any]):
    id = IdField()
    name = serializers.CharField()
    type = serializers.CharField(help_text="The media type, by the content")
    size = serializers.IntegerField(help_text="Bytes")
    sha256 = serializers.CharField()


class TicketSerializer(ReadOnly[Any]):
    ticket = serializers.CharField(help_text="Opens one websocket, or the event stream of one run, as ?ticket=")
    expires_at = TimeField()


class CheckSerializer(ReadOnly[Any]):
    ok = serializers.BooleanField()
    detail = serializers.CharField()


class HealthSerializer(ReadOnly[Any]):
    status = serializers.ChoiceField(choices=["ok", "unavailable"])
    checks = serializers.DictField(child=CheckSerializer(), required=False, help_text="Only for staff")
