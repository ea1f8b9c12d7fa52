from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Self, cast

from django.conf import settings
from django.db import models
from django.db.models import Case, Q, Value, When
from django.db.models.functions import Cast, Coalesce, Now
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from ravi_django.kernel.messages import StreamEvent
from ravi_django.kernel.supervision import Priority
from ravi_django.models.base import HexField, Owned, OwnedQuerySet, uuid7
from ravi_django.models.limits import ModelLimit
from ravi_django.models.session import Session


class Status(models.TextChoices):
    QUEUED = "queued"  # behind the session's active run, or until `wake_at`; promoted then
    PENDING = "pending"  # claimable, once `wake_at` has passed
    RUNNING = "running"  # leased
    SUSPENDED = "suspended"  # waits, without a worker
    BLOCKED = "blocked"  # waits for an operator
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = [Status.PENDING, Status.RUNNING, Status.SUSPENDED, Status.BLOCKED]
TERMINAL = [Status.COMPLETED, Status.FAILED, Status.CANCELLED]
UNPUBLISHED = Q(published_at=None, parent=None, finished_at__isnull=False)  # the end of a stream that may not be out


class RunQuerySet(OwnedQuerySet):
    def for_user(self, user: Any) -> Self:
        return super().for_user(user).exclude(session__in=Session.objects.filter(erasure__isnull=False))


class Run(Owned):
    """One execution of an agent. Only the packages that own the table write it."""

    agent = models.CharField(max_length=302, help_text=_("type/key"))
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="runs", db_index=False)
    root = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="tree", db_index=False)
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="children", db_index=False)
    depth = models.SmallIntegerField(default=0)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    priority = models.SmallIntegerField(
        choices=[(p.value, p.name.lower()) for p in Priority], default=Priority.NORMAL.value
    )
    metadata = models.JSONField(default=dict, blank=True)
    budget = models.JSONField(null=True, blank=True)
    deadline = models.DateTimeField(null=True, blank=True)
    output = models.TextField(null=True, blank=True)  # noqa: DJ001 - null until completed, "" is an answer
    error = models.JSONField(null=True, blank=True, help_text="type, message, and a diff when blocked")
    waiting_on = models.JSONField(null=True, blank=True)  # the waits of the last suspension; any one wakes

    agent_version = models.IntegerField(
        null=True, blank=True, help_text="For an agent in the database: the version of its spec that this run uses"
    )

    idempotency_scope = HexField(null=True, editable=False, help_text="Hash of user, agent and key")
    request_digest = HexField(blank=True, default="", editable=False)
    result_schema = models.TextField(  # text: its properties keep their order
        blank=True, default="", db_default="", editable=False, help_text="JSON Schema of the output, from the request"
    )

    client_tools = models.JSONField(
        null=True, blank=True, editable=False, help_text="Tools of the client: name, description, parameters"
    )

    # --- the lease
    lease_owner = models.CharField(max_length=100, blank=True, default="")
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    lease_epoch = models.IntegerField(default=0, help_text="The fence: rises with every claim")
    wake_at = models.DateTimeField(null=True, blank=True, help_text="Not claimable before")
    claim_at = models.DateTimeField(
        db_default=Now(),
        editable=False,
        help_text="When it became ready, minus the head start of its priority: the earliest is claimed first",
    )
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_reason = models.CharField(max_length=200, blank=True, default="")
    attempts = models.IntegerField(default=0, help_text="Retries after transient errors since the last effect")
    crashes = models.IntegerField(default=0, help_text="Expired running leases since the last effect")
    hints = models.IntegerField(default=0, help_text="Hints by the sweep; their interval grows")
    hint_after = models.DateTimeField(null=True, blank=True)
    release = models.CharField(max_length=100, blank=True, default="", help_text="The release of the last writer")
    for_release = models.CharField(
        max_length=100,
        blank=True,
        default="",
        db_default="",
        help_text="The release whose workers may claim it before `wake_at`",
    )
    wake_seq = models.IntegerField(
        default=0, db_default=0, help_text="Rises with every wake-up: a run does not suspend if it has changed"
    )
    awaits_slot = models.BooleanField(
        default=False, db_default=False, help_text="Its tree is full: not claimable until a slot is free"
    )

    model_limit = models.ForeignKey(
        ModelLimit,
        null=True,
        on_delete=models.PROTECT,  # nothing else wakes a run that waits for it
        related_name="+",
        db_index=False,
        help_text="Whose permits it waits for or has",
    )
    permits = models.SmallIntegerField(default=0, db_default=0, help_text="Model calls that it may make at once")

    # --- the rollups, see `live/rollups/`
    counted_seq = models.IntegerField(default=0, db_default=0, help_text="Rows up to here are counted")
    work_s = models.FloatField(default=0, db_default=0, help_text="Seconds at work: with a lease, up to there")

    # --- the journal and its sums
    generation = models.IntegerField(default=0)
    inbox_from = models.BigIntegerField(
        default=0, db_default=0, help_text="This generation's inbox begins after this message"
    )
    read_upto = models.BigIntegerField(
        default=0, db_default=0, help_text="The code was given the messages up to this one, by the journal"
    )
    state = models.JSONField(
        null=True, blank=True, editable=False, help_text="JSON of the previous generation, see `ctx.continue_as_new`"
    )
    turn_from = models.IntegerField(default=0, db_default=0, help_text="The first history turn of this generation")
    forked_from = models.UUIDField(null=True, blank=True, help_text="The run whose journal was copied")
    fork_seq = models.IntegerField(
        default=0, db_default=0, help_text="Rows up to here were copied from the run it was forked from"
    )
    next_seq = models.IntegerField(default=1)
    schema = models.SmallIntegerField(default=1, db_default=1, help_text="Version of the form of its journal's rows")
    next_turn = models.IntegerField(default=0, help_text="Number of history turns of this run")
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    cost = models.DecimalField(max_digits=16, decimal_places=8, default=0, help_text="US dollars, known part")
    cost_unknown = models.BooleanField(default=False, help_text="The price of a call was unknown")
    usage_estimated = models.BooleanField(
        default=False, help_text="The usage of a call was counted here, not reported by its provider"
    )

    # --- the stream of the tree (on its root)
    event_mark = models.IntegerField(default=1000, help_text="Event numbers up to here may have been used")
    published_at = models.DateTimeField(null=True, blank=True, help_text="When the end of the stream was published")

    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        permissions = [
            ("signal_run", "Can send signals of any name to one's runs"),
            ("choose_priority", "Can choose priorities above normal"),
            ("unlimited", "Is not rate limited"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="ravi_run_status"),
            models.UniqueConstraint(
                fields=["session", "agent"],
                condition=Q(parent__isnull=True, status__in=ACTIVE),
                name="ravi_run_one_active_root",
            ),
            models.UniqueConstraint(
                fields=["idempotency_scope"],
                condition=Q(idempotency_scope__isnull=False),
                name="ravi_run_idempotency_once",
            ),
        ]
        # A change of `status` writes to every index that has the row: so most indexes are partial.
        indexes = [
            models.Index(  # agents in the database have the key "": every worker knows them
                Case(When(agent_version=None, then="agent"), default=Value("")),
                "claim_at",
                "id",
                condition=Q(status="pending", awaits_slot=False),
                name="ravi_run_ready",
            ),
            models.Index(  # counts the open runs of a tenant or of an owner in it; without an owner the key is ""
                "tenant",
                Coalesce(Cast("owner", models.TextField()), Value("")),
                "priority",
                condition=Q(status__in=["pending", "running"]),
                name="ravi_run_open",
            ),
            models.Index(fields=["lease_expires_at"], condition=Q(status="running"), name="ravi_run_leased"),
            models.Index(fields=["wake_at"], condition=Q(status="suspended"), name="ravi_run_timers"),
            models.Index(
                fields=["model_limit"],
                condition=Q(status="suspended", model_limit__isnull=False),
                name="ravi_run_awaiting_model",
            ),
            models.Index(fields=["session", "agent"], condition=Q(status="queued"), name="ravi_run_queued"),
            models.Index(fields=["owner"], condition=Q(status="queued"), name="ravi_run_queued_owner"),
            models.Index(fields=["root"], condition=Q(awaits_slot=True), name="ravi_run_awaiting"),
            models.Index(  # finds the run of an owner that waits for a feed's items
                fields=["agent", "owner", "-id"],
                condition=Q(status="suspended", parent__isnull=True),
                name="ravi_run_waiting_agent",
            ),
            models.Index(fields=["owner", "-id"], condition=Q(owner__isnull=False), name="ravi_run_owner_idx"),
            models.Index(fields=["session", "id"], name="ravi_run_session_idx"),
            models.Index(fields=["root"], condition=Q(root__isnull=False), name="ravi_run_tree_idx"),
            models.Index(fields=["parent"], condition=Q(parent__isnull=False), name="ravi_run_children_idx"),
            models.Index(fields=["id"], condition=Q(status="blocked"), name="ravi_run_blocked"),
            models.Index(fields=["forked_from"], condition=Q(forked_from__isnull=False), name="ravi_run_forks"),
        ]

    def __str__(self) -> str:
        return f"{self.agent} {self.id}"

    def cancel(self, reason: str = "cancelled by the site's code") -> None:
        """Cancel the run and those below it. Raises IllegalTransitionError when it has ended."""
        import_string("ravi_django.runs.lifecycle.endings.cancel")(self.id, reason)

    def retry(self) -> Self:
        """Let a failed or blocked run continue from its journal. Raises IllegalTransitionError for another one."""
        return cast(Self, import_string("ravi_django.runs.lifecycle.retry.retry")(self.id))

    def wait(self, timeout: float | timedelta | None = None) -> Self:
        """Wait until the run has ended or is blocked, and read it. Raises TimeoutError after `timeout` (seconds or a
        timedelta), and RuntimeError inside a transaction, on an event loop, and with RAVI["ENGINE"] = "manual"."""
        return cast(Self, import_string("ravi_django.runs.results.wait")(self, timeout))

    def result(self, result_type: Any = None, *, timeout: float | timedelta | None = None) -> Any:
        """`wait`, then the output: a text, or for a typed result an instance of its type. `result_type` reads it as
        another type. A process without the type gets the JSON value.

        Raises RunFailedError when the run failed, was cancelled or is blocked, ResultInvalidError for an output that is
        not of the type, and what `wait` raises.
        """
        return import_string("ravi_django.runs.results.result")(self, result_type, timeout)

    def events(self, after: int = 0, *, user: Any = None) -> Iterator[StreamEvent]:
        """The events of the run's tree above the number `after`, as they come, until it ends or is blocked. With `user`
        what they may see, or NotFoundError; without, all: for code of the site. Raises RuntimeError where `wait` does.
        """
        follow: Callable[..., Iterator[StreamEvent]] = import_string("ravi_django.runs.following.events")
        return follow(self, after, user=user)

    def aevents(self, after: int = 0, *, user: Any = None) -> AsyncGenerator[StreamEvent]:
        """`events` on an event loop: `async for event in run.aevents()`."""
        follow: Callable[..., AsyncGenerator[StreamEvent]] = import_string("ravi_django.runs.following.aevents")
        return follow(self, after, user=user)

    @property
    def tree_id(self) -> Any:
        """The id of the root of this run's tree: its own at the root."""
        return self.root_id or self.id

    @property
    def waits_for(self) -> dict[str, Any] | None:
        """Why the run waits: the first of its waits, or a free slot of its tree, as {kind, id or name, until}."""
        if self.awaits_slot and self.status == Status.PENDING:
            return {"kind": "slot", "name": "", "until": None}
        return self.waiting_on[0] if self.waiting_on and self.status == Status.SUSPENDED else None

    @property
    def start_at(self) -> datetime | None:
        """When a queued run may start, if it was submitted with `start_at`."""
        return self.wake_at if self.status == Status.QUEUED else None

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended: completed, failed or cancelled."""
        return self.status in TERMINAL

    @property
    def is_unpublished(self) -> bool:
        """UNPUBLISHED of one row."""
        return self.parent_id is None and self.finished_at is not None and self.published_at is None


class AfterLease(models.Model):
    """Marks a run of which something is left to do after its lease: its rows are not counted yet, or the end of its
    stream is not published. A table of its own: such a mark on the run would write to each index of the run again.

    A claim writes it, and so does an end without a lease. The key has no constraint: its writers lock the run's row.
    """

    run = models.OneToOneField(
        Run, primary_key=True, on_delete=models.CASCADE, related_name="after_lease", db_constraint=False
    )

    def __str__(self) -> str:
        return str(self.run_id)


class Feedback(models.Model):
    """One person's opinion of one run; the last one counts."""

    class Score(models.IntegerChoices):
        GOOD = 1, _("good")
        BAD = -1, _("bad")

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="feedback", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    score = models.SmallIntegerField(choices=Score.choices)
    text = models.CharField(max_length=2000, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "feedback"
        constraints = [
            models.UniqueConstraint(fields=["run", "user"], name="ravi_feedback_once"),
            models.CheckConstraint(condition=Q(score__in=[1, -1]), name="ravi_feedback_score"),
        ]

    def __str__(self) -> str:
        return str(self.get_score_display())


class Signal(models.Model):
    """A named message to a run. Kept until a wait consumes it, once.

    The key to the run has no constraint: a sender and a deletion both lock the run's row first.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="signals", db_index=False, db_constraint=False)
    name = models.CharField(max_length=200)
    payload = models.JSONField(null=True)
    key = models.CharField(
        max_length=64, blank=True, default="", help_text="From the sender: a repeat is the same signal"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    consumed_at = models.DateTimeField(null=True, blank=True)
    woke = models.BooleanField(default=True, help_text="False until the run is woken: the sweep looks for these")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["run", "key"], condition=~Q(key=""), name="ravi_signal_once")]
        indexes = [
            models.Index(fields=["run", "id"], condition=Q(consumed_at__isnull=True), name="ravi_signal_unread"),
            models.Index(fields=["run"], condition=Q(woke=False), name="ravi_signal_silent"),
            models.Index(fields=["run"], condition=Q(consumed_at__isnull=False), name="ravi_signal_read"),
        ]

    def __str__(self) -> str:
        return self.name


class AskKind(models.TextChoices):
    REPLIED = "replied"
    TIMED_OUT = "timed_out"
    TARGET_FAILED = "target_failed"
    TARGET_CANCELLED = "target_cancelled"


class Ask(models.Model):
    """One run waits for another's reply, or its end. The outcome is set once: by the reply, the end or the timeout."""

    id = models.UUIDField(primary_key=True, default=uuid7)
    asker = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="asks", db_index=False)
    generation = models.IntegerField(default=0)
    path = models.CharField(max_length=500, help_text="The place of the ask in the asker's code")
    target = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="asked", db_index=False)
    message_id = models.CharField(max_length=64, blank=True, default="", help_text="Empty: waits only for the end")
    deadline = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(  # noqa: DJ001 - null while open
        max_length=20, choices=AskKind.choices, null=True, blank=True
    )
    result = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["asker", "generation", "path"], name="ravi_ask_once_a_path"),
            models.CheckConstraint(
                condition=Q(outcome__isnull=True) | Q(outcome__in=AskKind.values), name="ravi_ask_outcome"
            ),
        ]
        indexes = [models.Index(fields=["target"], condition=Q(outcome__isnull=True), name="ravi_ask_open")]

    def __str__(self) -> str:
        return f"{self.asker_id} asks {self.target_id}"
