"""Fork a run: a new run with a copy of another's past. For every surface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import reduce
from itertools import islice
from operator import add
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import Max, Min, Q, QuerySet, Sum, TextField
from django.db.models.functions import Cast, Coalesce

from ravi_django import limits
from ravi_django.db import Bytes, lock_rows, transaction
from ravi_django.engine.db import claim_order
from ravi_django.engine.db.clock import present
from ravi_django.engine.journal import outbox
from ravi_django.engine.journal.append import write_row
from ravi_django.engine.journal.entries import GIVE_MESSAGES, Entry
from ravi_django.engine.lease import history
from ravi_django.kernel import AgentId, ConflictError, InvalidInputError, Message
from ravi_django.kernel.checks import check_whole
from ravi_django.kernel.json_values import digest_of
from ravi_django.live.streams import republish
from ravi_django.models import TERMINAL, InboxMessage, JournalEntry, Phase, Run, Session, Status, Turn, uuid7
from ravi_django.runs import hints
from ravi_django.runs.catalog import specs
from ravi_django.runs.checks import message_of, owner_of, scope_of, title_of
from ravi_django.runs.files import files
from ravi_django.runs.lifecycle.copies import as_literal, copy_rows, copy_turns
from ravi_django.runs.lifecycle.erasing import check_owned
from ravi_django.runs.lifecycle.prune_rows import is_pruned
from ravi_django.runs.sessions import create_session, take_name
from ravi_django.runs.submit import first_of
from ravi_django.runs.teams import board, slots


def fork(run_id: UUID | str, after_seq: int, *, send: Any = None) -> Run:
    """A new run in a new session that shares a run's past up to a journal entry, and goes its own way from there.

    The past ends at the nearest entry at or before `after_seq` without an open effect. Inside the caller's transaction;
    a worker is notified after the commit. Raises InvalidInputError for an `after_seq` that the journal does not have,
    ConflictError when the journal was pruned or the run's owner deleted.
    """
    return fork_once(run_id, after_seq, send=send)[0]


def fork_once(
    run_id: UUID | str,
    after_seq: int | None = None,
    *,
    input: Any = None,
    client_tools: list[dict[str, Any]] | None = None,
    user: Any = None,
    idempotency_key: str | None = None,
    send: Any = None,
) -> tuple[Run, bool]:
    """`fork`, also saying whether the run is new: with an `idempotency_key`, scoped to (user, source), a repeat returns
    the first fork. Raises IdempotencyMismatchError when that has another body.

    With `input` instead of `after_seq` the fork begins before the first step, with this message in place of the run's
    own, the present version of the agent, and these tools of the client. Raises ConflictError for a run that has
    continued as new.
    """
    if (input is None) is (after_seq is None):
        raise InvalidInputError("a fork takes either after_seq or input", field="after_seq")
    message, used = None, list[UUID]()
    if input is None:
        check_whole("after_seq", after_seq)
        asked = Run(request_digest=digest_of({"after_seq": after_seq}))
    else:
        message = message_of(AgentId.parse(Run.objects.values_list("agent", flat=True).get(id=run_id)), input)
        asked = Run(request_digest=digest_of({"input": message.payload.model_dump(mode="json")}))
    if idempotency_key is not None:
        asked.idempotency_scope = scope_of(user, f"fork:{run_id}", idempotency_key)
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).get(id=run_id)  # of two forks with one key the second waits
        if (first := first_of(asked)) is not None:
            return first, False
        if message is not None:
            message, used = files.resolve(message, owner_of(user))
        key = asked.idempotency_scope, asked.request_digest
        run: Any = files.referring(used, write_fork, run_id, after_seq or 1, *key, message, user, client_tools)
        board.copy_past(Run.objects.select_related("session").get(id=run_id), run)
    republish.on_commit(run, republish.publish_past)  # before the frames of the first lease
    hints.on_commit(run.id, send)
    return run, True


ENDED = ("run.completed", "run.failed", "run.cancelled", "run.blocked")
BATCH = 100  # messages of a run to itself, read and written together


def write_fork(
    run_id: UUID | str,
    after_seq: int,
    scope: str | None = None,
    digest: str = "",
    message: Message | None = None,
    user: Any = None,
    client_tools: list[dict[str, Any]] | None = None,
) -> Run:
    """Copy the run's past up to the nearest entry at or before `after_seq` with no open effect, into a new root run in
    a new session. Returns it, pending; the source stays as it is. A `message` replaces the one that the run began with.

    Copied are the journal, the messages that had arrived, and the conversation before the run's own turns, which the
    replay writes again. The new session keeps the files that these name. Raises as `fork` does, and RateLimitedError.
    """
    with transaction.atomic():
        name = take_name(run_id) if message else ()  # before the user is locked, as in an erasure
        source = _lock(run_id)
        agent = specs.find(source.agent) if message else None  # its present version: there is no journal to replay
        if agent is None:
            specs.check_not_withdrawn(source)
        elif source.generation:
            raise ConflictError(f"run {source.id} has continued as new; it has no longer the message it began with")
        else:
            agent.check_variables(source.metadata)
        point = _point(source, after_seq) if agent is None else 0
        past = JournalEntry.objects.filter(run_id=source.id, seq__lte=point)
        end = _first_own_position(source, point)
        turns = Turn.objects.filter(session_id=source.session_id, position__lt=end)
        title = title_of(message) if message else source.session.title
        remembered = history.remembered_at(source.session_id, _time_of(source, point))
        _count_bytes(user, past, source, (turns, remembered))
        epoch = (past.aggregate(last=Max("epoch"))["last"] or 0) + 1
        now = present()
        new = Run(
            id=uuid7(),
            agent=source.agent,
            agent_version=agent.version if agent else source.agent_version,
            owner_id=source.owner_id,
            tenant=source.tenant,
            session=_copy_session(source, end, title, name, turns, remembered),
            status=Status.PENDING,
            priority=source.priority,
            metadata=source.metadata,
            state=source.state,
            result_schema=source.result_schema,
            client_tools=source.client_tools if client_tools is None else client_tools,
            budget=_budget(source),
            deadline=source.deadline if source.deadline and source.deadline > now else None,
            release=source.release,
            lease_epoch=epoch,
            generation=source.generation,
            forked_from=source.id,
            fork_seq=point,
            counted_seq=point,  # the copied rows are counted where they were made
            idempotency_scope=scope,
            request_digest=digest,
            next_seq=point + 2,
            schema=source.schema,
            event_mark=0,  # no number of its stream was ever used
            wake_seq=source.wake_seq,
        )
        claim_order.stamp(new).save(force_insert=True)
        _copy_inbox(source, new, point, message)
        _copy_journal(past, source, new)
        _copy_files(source, new)
        result = {"run": str(source.id), "seq": point, "origins": _origins(source, point)}
        write_row(new, Entry("run.forked", f"@forked.{epoch}", result=result), epoch, seq=point + 1)
        Run.objects.filter(id=new.id).update(**_sums(new))
        if outbox.is_on() and (asked := InboxMessage.objects.filter(run_id=new.id).order_by("id").first()):
            outbox.write(outbox.of_submit(new, asked.body))
        new.refresh_from_db()
    return new


def _lock(run_id: UUID | str) -> Run:
    """The run, whose journal must not grow, and its owner: an erasure of the owner finds the copy, or this fork finds
    the session marked."""
    source: Run = Run.objects.select_for_update(no_key=True).get(id=run_id)
    users: Any = get_user_model()._base_manager
    lock_rows(users.filter(pk=source.owner_id))
    check_owned(source)
    if is_pruned(source):
        raise ConflictError(f"the journal of run {source.id} was pruned; there is no past to share")
    return source


def _budget(source: Run) -> dict[str, Any] | None:
    """The limits of the source's tree, tightened by its own spawn limits, with the source's other limits over them."""
    if source.root is None or not source.budget:
        return source.budget if source.root is None else source.root.budget
    spawning = slots.joined(slots.recorded(source.root.budget), slots.recorded(source.budget))
    return {**(source.root.budget or {}), **source.budget, **(spawning or {})}


def _point(source: Run, after_seq: int) -> int:
    """The nearest entry at or before `after_seq`, in this generation, where no effect was open and the run not
    ended."""
    if after_seq >= source.next_seq:
        raise InvalidInputError(
            f"after_seq must be an entry of the journal, which has {source.next_seq - 1}, not {after_seq}",
            field="after_seq",
        )
    rows = JournalEntry.objects.filter(run_id=source.id, generation=source.generation)
    first = rows.aggregate(first=Min("seq"))["first"]
    start: int = source.next_seq if first is None else first
    if after_seq < start:
        raise InvalidInputError(
            f"after_seq {after_seq} is in an earlier generation of the run; the present one begins with entry {start}",
            field="after_seq",
        )
    rows = rows.filter(seq__lte=min(after_seq, _before_live_children(source)))
    retried = {
        seq: set(result["supersedes"])
        for seq, result in rows.filter(kind="run.retried").values_list("seq", "result")
        if result and "supersedes" in result
    }
    taken = rows.order_by("seq").values_list("seq", "path", "phase", "kind")
    return _last_clean(taken.iterator(chunk_size=1000), retried, before=start - 1)


def _before_live_children(source: Run) -> int:
    """The last entry before the spawn of a live child: the child stays the source's."""
    children = Run.objects.filter(parent_id=source.id).exclude(status__in=TERMINAL).values_list("id", flat=True)
    live = {str(child) for child in children}
    spawned = JournalEntry.objects.filter(run_id=source.id, generation=source.generation, kind="child.spawned")
    rows = spawned.values_list("seq", "result")
    return min((seq for seq, result in rows if (result or {}).get("run") in live), default=source.next_seq) - 1


def _last_clean(rows: Iterable[tuple[int, str, str, str]], retried: dict[int, set[int]], *, before: int) -> int:
    begun: set[str] = set()  # paths of effects that were started with a row of their own
    left: set[str] = set()  # and have no result
    paths: dict[int, str] = {}
    ended, point = False, before
    for seq, path, phase, kind in rows:
        if path.startswith("@"):
            ended = kind in ENDED
            left |= begun & {paths.get(superseded, "") for superseded in retried.get(seq, ())}
        elif phase == Phase.RESULT:
            paths[seq] = path
            left.discard(path)
        else:
            begun.add(path)
            left.add(path)
        if not left and not ended:
            point = seq
    return point


def _origins(source: Run, point: int) -> list[list[Any]]:
    """The run that recorded each part of the copied journal: [last seq, run id], oldest first. Ids that the code
    derives from the run's id are derived from that one's there."""
    rows = JournalEntry.objects.filter(run_id=source.id, generation=source.generation, kind="run.forked")
    result = rows.order_by("-seq").values_list("result", flat=True).first()
    origins: list[list[Any]] = []
    for upto, run_id in [*(result["origins"] if result else []), [point, str(source.id)]]:
        if not origins or origins[-1][0] < point:
            origins.append([min(upto, point), run_id])
    return origins


def _count_bytes(user: Any, past: QuerySet[JournalEntry], source: Run, turns: Iterable[QuerySet[Turn]]) -> None:
    """Count what the fork copies. No more is read than the limit allows."""
    if (most := limits.limit("fork_bytes")) is None or user is None:
        return
    messages = InboxMessage.objects.filter(run_id=source.id).order_by("id")
    copied: list[tuple[Any, Sequence[str]]] = [(rows, ("content", "entry__result")) for rows in turns]
    copied += [(messages, ("body",)), (past.order_by("seq"), ("request", "result"))]
    total = 0
    for rows, columns in copied:
        size = reduce(add, (Coalesce(Bytes(column), 0) for column in columns))
        for (read,) in rows.values_list(size).iterator(chunk_size=100):  # the server measures none behind these
            total += read
            if total > most:
                break
    limits.count(user, "fork_bytes", total)


def _copy_session(
    source: Run, end: int, title: str, name: Sequence[str], past: QuerySet[Turn], remembered: QuerySet[Turn]
) -> Session:
    """Copy the conversation that the run could read, at the same positions: its reads are journaled by position. The
    memory of delegated agents becomes one child session."""
    new = Session(owner_id=source.owner_id, tenant=source.tenant, agent=source.agent, title=title, next_position=end)
    new.name, new.owner_key = name or ("", "")
    new.shared_state = source.session.shared_state
    if source.parent_id is None:
        new.family = source.session.family or source.session_id
    session = create_session(new)
    copy_turns(past, session.id)
    if remembered.exists():
        child = Session(owner_id=source.owner_id, tenant=source.tenant, parent_session=session, memory_of=session.id)
        child.ended_at = present()
        order = "row_number() OVER (ORDER BY ended, session_id, position)"
        copy_turns(remembered, create_session(child).id, position=order)
    return session


def _first_own_position(source: Run, point: int) -> int:
    turns = Turn.objects.filter(session_id=source.session_id)
    first = turns.filter(run_id=source.id, index__gte=source.turn_from).aggregate(first=Min("position"))["first"]
    if first is not None:
        return int(first)
    reads = JournalEntry.objects.filter(
        run_id=source.id, generation=source.generation, kind="history.read", seq__lte=point
    )
    if positions := [result["position"] for result in reads.values_list("result", flat=True) if result]:
        return int(max(positions))
    last = turns.filter(created_at__lte=_time_of(source, point)).aggregate(last=Max("position"))["last"]
    return 0 if last is None else int(last) + 1


def _copy_inbox(source: Run, new: Run, point: int, first: Message | None) -> None:
    """Copy this generation's messages that had arrived by then. `first` replaces the first one."""
    rows = InboxMessage.objects.filter(run_id=source.id, id__gt=source.inbox_from)
    seen = JournalEntry.objects.filter(run_id=source.id, generation=source.generation, seq__lte=point)
    upto = max(
        seen.aggregate(last=Max("read_upto"))["last"] or 0,
        rows.aggregate(first=Min("id"))["first"] or 0,  # what the run began with
    )
    came = Q(id__lte=upto) | Q(created_at__lte=_time_of(source, point))
    consumed = f"CASE WHEN id <= {upto} THEN consumed_at END"
    copy_rows(rows.filter(came), {"id": None, "run_id": as_literal(new.id), "consumed_at": consumed})
    copies = InboxMessage.objects.filter(run_id=new.id).order_by("id")
    bound = Q(body__reply_to=str(source.id)) | Q(body__correlation_id__isnull=True)
    bound_to_source = copies.filter(bound).iterator(chunk_size=BATCH)
    while batch := list(islice(bound_to_source, BATCH)):
        for message in batch:
            message.body.setdefault("correlation_id", str(source.session_id))  # a replay compares it
            if message.body.get("reply_to") == str(source.id):
                message.body["reply_to"] = str(new.id)
        InboxMessage.objects.bulk_update(batch, ["body"])
    if first is not None:
        beginning = copies[0]
        beginning.body["payload"] = first.to_json()["payload"]
        beginning.save(update_fields=["body"])


# The copy of the last message up to `{upto}`; none: a message of an earlier generation.
_COPIED = """coalesce((SELECT copy.id FROM ravi_inboxmessage message JOIN ravi_inboxmessage copy
  ON copy.run_id = {new} AND copy.message_id = message.message_id
  WHERE message.run_id = {old} AND message.id <= {upto} ORDER BY message.id DESC LIMIT 1), 0)"""


def _copy_journal(past: QuerySet[JournalEntry], source: Run, new: Run) -> None:
    """Copy the rows, with the new ids of messages."""
    ids = {"old": as_literal(source.id), "new": as_literal(new.id)}
    other = {
        "run_id": ids["new"],
        "read_upto": f"CASE WHEN read_upto IS NOT NULL THEN {_COPIED.format(upto='read_upto', **ids)} END",
    }
    copy_rows(past, other)


def _copy_files(source: Run, new: Run) -> None:
    """Of the source's session, those files that the copied turns and messages name."""
    if not (files := list(source.session.files.all())):  # type: ignore[attr-defined]
        return
    named: set[Any] = set()
    rows: Any
    for rows, column in ((Turn.objects.filter(session=new.session), "content"), (new.inbox, "body")):  # type: ignore[attr-defined]
        texts = rows.annotate(text=Cast(column, TextField())).filter(text__contains='"file"')
        for text in texts.values_list("text", flat=True).iterator(chunk_size=10):
            named |= {file for file in files if str(file.id) in text}
    new.session.files.add(*named)  # type: ignore[attr-defined]


def _time_of(source: Run, point: int) -> datetime:
    """When the last shared row was recorded; without one, when the run began."""
    rows = JournalEntry.objects.filter(run_id=source.id, seq=point).values_list("finished_at", flat=True)
    return rows.first() or source.started_at or source.created_at


def _sums(new: Run) -> dict[str, Any]:
    used = JournalEntry.objects.filter(run_id=new.id, input_tokens__isnull=False)
    names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost")
    totals = used.aggregate(**{f"sum_{name}": Sum(name) for name in names})
    sums: dict[str, Any] = {name: totals[f"sum_{name}"] or 0 for name in names}
    read = JournalEntry.objects.filter(run_id=new.id, kind__in=GIVE_MESSAGES).aggregate(upto=Max("read_upto"))["upto"]
    return {
        **sums,
        "cost_unknown": used.filter(cost=None).exists(),
        "usage_estimated": used.filter(result__estimated=True).exists(),
        "read_upto": read or 0,
    }
