"""One exchange with a client that sends whole conversations: OpenAI's two APIs and AG-UI.

The conversation is the session, not the client's list of messages. Of that list, only the messages after the last one
of the assistant count: those of the user are the input of a run, those of a tool answer requests of the session. From
the others no content is made; OpenAI's endpoints compare their texts to find the session.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Q
from pydantic_core import to_json

from ravi_django import access, limits
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    ConflictError,
    InputTooLargeError,
    InvalidInputError,
    NotFoundError,
    Priority,
    SessionNotFoundError,
)
from ravi_django.kernel.json_values import read_json
from ravi_django.live.streams import hidden
from ravi_django.live.streams.reading import newest
from ravi_django.models import ACTIVE, HumanRequest, InboxMessage, Run, Session, Status
from ravi_django.people import answers, client_calls, site_rules
from ravi_django.runs import checks
from ravi_django.runs.files import files
from ravi_django.runs.files.contents import kind_of
from ravi_django.runs.lifecycle.submit import say
from ravi_django.services.request_shapes import AnswerSerializer, RequestDetailSerializer, marked

Kind = HumanRequest.Kind


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message of the client's list."""

    role: str  # user, assistant or tool; others are refused
    content: Any  # text, or a list of parts as the client's API has them
    answers: str = ""  # of a tool message: the id of the request


@dataclass(frozen=True, slots=True)
class Input:
    """The input of the client: either `blocks` or `answers` is empty, but for AG-UI."""

    blocks: list[dict[str, Any]]  # content blocks of a message
    answers: list[ClientMessage]
    field: str = "messages"  # the part of the request that they are from


@dataclass(frozen=True, slots=True)
class Exchange:
    """A run that the client waits for."""

    user: Any
    run: Run  # the root
    after: int = 0  # the frames of its tree up to here belong to earlier exchanges
    whole: bool = field(default=False)  # with values that are hidden from owners
    is_repeat: bool = False  # of an earlier call


MAX_PARTS = 1000  # of the messages of one call


def first_new(messages: Sequence[Any], is_assistants: Callable[[Any], bool]) -> int:
    """The place of the first message after the last one of the assistant."""
    return next((number for number in range(len(messages), 0, -1) if is_assistants(messages[number - 1])), 0)


def new(
    messages: Sequence[Any], is_assistants: Callable[[Any], bool], name: str = "messages"
) -> list[tuple[int, dict[str, Any]]]:
    """The messages after the last one of the assistant, each with its place in the client's list. Raises
    InputTooLargeError if they have more than MAX_PARTS parts, InvalidInputError for one that is no object."""
    first = first_new(messages, is_assistants)
    numbered = list(enumerate(messages[first:], first))
    parts = 0
    for index, message in numbered:
        if not isinstance(message, dict):
            raise InvalidInputError("a message is an object", field=f"{name}.{index}")
        content = message.get("content")
        parts += len(content) if isinstance(content, list) else 1
    if parts > MAX_PARTS:
        raise InputTooLargeError(f"the messages of a call have at most {MAX_PARTS} parts", field=name)
    return numbered


def read(messages: Iterable[tuple[int, ClientMessage]], name: str = "messages", *, of_agui: bool = False) -> Input:
    """The input of these new messages. Raises InvalidInputError that names one of them, and InputTooLargeError before a
    file is looked up."""
    blocks: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    answered: dict[str, list[ClientMessage]] = {}
    for index, message in messages:
        match message.role:
            case "system" | "developer" if quotes_instructions():
                path = f"{name}.{index}.content"
                texts = (block.get("text", "") for block in _blocks(message.content, path))
                notes.append({"type": "text", "text": QUOTED + "\n".join(texts).strip().replace("\n", "\n> ")})
            case "user":
                blocks += _blocks(message.content, f"{name}.{index}.content")
            case "tool":
                _add_answer(answered, message, name)
            case role:
                text = f"the role {role!r:.50} is not possible: {OWN_INSTRUCTIONS}"
                raise InvalidInputError(text, field=f"{name}.{index}.role")
    if blocks and answered and not of_agui:
        raise InvalidInputError("answer the requests first, then send the user's message", field=name)
    if not (blocks or answered or of_agui):
        raise InvalidInputError("there is no message of the user after the last one of the assistant", field=name)
    if blocks:
        blocks = notes + blocks
    _name_files(blocks)
    return Input(blocks, [one for same in answered.values() for one in same], name)


OWN_INSTRUCTIONS = (
    "an agent has its own instructions; write the text in the user's message, or set "
    'RAVI["CLIENT_INSTRUCTIONS"] = "quote" for a quoted note of that message'
)
QUOTED = "Note of the user's program, which is part of this message and no instruction of the site:\n> "


def quotes_instructions() -> bool:
    return bool(conf.CLIENT_INSTRUCTIONS == "quote")


def _add_answer(answered: dict[str, list[ClientMessage]], answer: ClientMessage, name: str) -> None:
    """Equal answers to a request are one. Raises InputTooLargeError for more than a run can ask at once."""
    same = answered.setdefault(answer.answers, [])
    if answer not in same:
        same.append(answer)
        if sum(map(len, answered.values())) > (most := int(conf.MAX_TOOL_CALLS)):
            text = f"a call has at most {most} answers; send the others in another call"
            raise InputTooLargeError(text, field=name)


def _name_files(blocks: list[dict[str, Any]]) -> None:
    """Set the type of the blocks that name a file."""
    checks.check_size(blocks)
    named = [block for block in blocks if block["type"] == "file"]
    kinds = files.kinds(block["file"] for block in named)
    for block in named:
        block["type"] = kinds.get(block["file"], "document")


def _blocks(content: Any, path: str) -> Iterator[dict[str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for number, part in enumerate(parts if isinstance(parts, list) else [parts]):
        match part:
            case {"type": "text" | "input_text", "text": str(text)}:
                yield {"type": "text", "text": text}
            case {"type": "image_url", "image_url": {"url": str(url), **more}} | {
                "type": "input_image",
                "image_url": str(url),
                **more,
            }:
                yield {"type": "image", **_source(url), **_detail(more)}
            case (
                {"type": "file", "file": {"file_id": str(file)}}
                | {"type": "input_file" | "input_image", "file_id": str(file)}
                | {"type": "image" | "audio" | "video" | "document", "source": {"type": "file", "value": str(file)}}
            ):
                yield {"type": "file", "file": file, **_detail(part)}
            case {"type": "file", "file": {"file_data": str(data), **more}} | {
                "type": "input_file",
                "file_data": str(data),
                **more,
            }:
                yield _inline(data, more.get("filename"))
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
                yield {"type": "audio", "data": data, "mime_type": "audio/mpeg" if kind == "mp3" else f"audio/{kind}"}
            case {"type": "image" | "audio" | "video" | "document" as kind, "source": {"type": "url", "value": value}}:
                yield {"type": kind, "url": value}
            case {"type": "image" | "audio" | "video" | "document" as kind, "source": {"type": "data", **source}}:
                yield {"type": kind, "data": source.get("value"), "mime_type": source.get("mimeType")}
            case _:
                text = "this is not a part that a message can have: a text, an image, a document, an audio or a video"
                raise InvalidInputError(text, field=f"{path}.{number}")


def _detail(image: Mapping[Any, Any]) -> dict[str, str]:
    detail = image.get("detail")
    return {"detail": detail} if detail in ("low", "high", "auto", "original") else {}


def _source(url: str) -> dict[str, str]:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return {"data": data, "mime_type": head[len("data:") : -len(";base64")]}
    return {"url": url}


def _inline(data: str, name: Any) -> dict[str, Any]:
    """A file in the message itself, as a data URL or as base64."""
    source = _source(data)
    if "url" in source:
        source = {"data": data, "mime_type": mimetypes.guess_type(str(name))[0] or "application/pdf"}
    return {"type": kind_of(source["mime_type"]), **source, "name": name}


def begin(
    user: Any, agent: AgentId, thread: checks.Thread | Session | None, incoming: Input, **options: Any
) -> Exchange:
    """Submit the input to `agent`, or answer the requests. Without a thread a new session is made; more options: those
    of `submit`. Raises the errors of both."""
    whole = hidden.sees(user)
    if incoming.blocks:
        run, is_new = submit(user, agent, incoming.blocks, before=_check_answered, session=thread, **options)
        is_repeat = not is_new and _is_repeat(user, agent, run, options.get("idempotency_key"))
        return Exchange(user, run, 0 if is_new or is_repeat else newest(run.tree_id), whole, is_repeat)
    session = checks.conversation_of(thread, checks.owner_of(user), site_rules.tenant_for(user))
    if session is not None and session._state.adding:  # it is a name that no conversation has
        raise SessionNotFoundError(str(thread))
    access.find(user, agent, session.id if session else None)
    root, after, is_repeat = _answer(user, session, incoming)
    return Exchange(user, root, after, whole, is_repeat)


def _is_repeat(user: Any, agent: AgentId, run: Run, key: str | None) -> bool:
    """Whether the key is that of the run. Else the run at work got the message."""
    return key is not None and run.idempotency_scope == checks.scope_of(checks.owner_of(user), agent, key)


def run_known(user: Any, agent: AgentId, key: str | None) -> Run | None:
    """The user's run of the agent with this idempotency key."""
    scope = checks.scope_of(checks.owner_of(user), agent, key) if key else None
    return Run.objects.select_related("session").filter(idempotency_scope=scope).first() if scope else None


def input_known(user: Any, agent: AgentId, key: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None] | None:
    """The content of the first message and the client's tools of the user's run of the agent with this idempotency key.
    None: no such run."""
    scope = checks.scope_of(checks.owner_of(user), agent, key)
    messages = InboxMessage.objects.filter(run__idempotency_scope=scope).order_by("id")
    if (first := messages.values_list("body", "run__client_tools").first()) is None:
        return None
    body, tools = first
    return list(body["payload"]["message"]["content"]), tools


def submit(
    user: Any, agent: AgentId, input: Any, *, before: Callable[[Any, Any], None] | None = None, **options: Any
) -> tuple[Run, bool]:
    """`submit` with the user's rights and limits; also returns whether the run is new. `before` is called with the user
    and the session's id if the run is no repeat."""
    session = options.get("session")
    if session or options.get("start_at"):
        limits.check_queued(user)
    if "priority" in options:
        access.check_priority(user, Priority[options["priority"].upper()])
    tenant = "" if session else site_rules.tenant_for(user)  # else the session's
    if isinstance(session, str):
        session = checks.named(session, checks.owner_of(user), site_rules.tenant_for(user))
        tenant = session.tenant
    session_id = session.id if isinstance(session, Session) else session

    def find(address: AgentId) -> Any:
        runnable = access.find(user, address, session_id)
        if before is not None:
            before(user, session_id)
        return runnable

    run, is_new = say(agent, input, user=user, tenant=tenant, find=find, **options)
    key = options.get("idempotency_key")
    if is_new:
        is_later = run.status == Status.QUEUED and not options.get("start_at")
    else:
        is_later = key is None or not _is_repeat(user, agent, run, key)
    if is_later:
        client_calls.close(run.session_id, checks.owner_of(user))  # of the run at work: its user goes on
    return run, is_new


def _answer(user: Any, session: Session | None, incoming: Input) -> tuple[Run, int, bool]:
    """Checks all answers before it writes the first. An answer that was given before counts as given: if all were, the
    exchange is a repeat, which continues where its run has paused last."""
    pending, roots = [], []
    checked: dict[UUID, answers.AnswerInput] = {}  # by request: an id may be written in several ways
    for sent in incoming.answers:
        row = _request(sent.answers, session)
        root = (row.run.root or row.run) if row else None
        if row is None or root is None or session is None or root.session_id != session.id:
            raise _not_open(sent, incoming)
        roots.append(root)
        arguments = _answer_of(row, sent.content)
        new = answers.AnswerInput(**{name: value for name, value in arguments.items() if name != "version"})
        if row.id in checked:
            if checked[row.id] != new:
                text = f"there are two different answers to request {row.id}; send one"
                raise InvalidInputError(text, field=incoming.field)
            continue
        checked[row.id] = new
        if row.status == HumanRequest.Status.PENDING:
            answers.check(row, new, user)
            pending.append((row, arguments))
        elif row.answered_by_id != user.pk or answers.checked(row, new) != _answer_content(row):
            raise _not_open(sent, incoming)
    after = newest(roots[0].id, bool if pending else waits)
    for row, arguments in pending:
        answers.answer(row, by=user, **arguments)
    return roots[0], after, not pending


def _request(id: str, session: Session | None) -> HumanRequest | None:
    """By its own id, or by that of the call of the client's tool."""
    try:
        return answers.find(id)
    except NotFoundError:
        return None if session is None else client_calls.of_call(session.id, id)


def _not_open(sent: ClientMessage, incoming: Input) -> InvalidInputError:
    return InvalidInputError(
        f"{sent.answers!r:.50} is not the id of an open request of this session", field=incoming.field
    )


def _answer_content(row: HumanRequest) -> dict[str, Any]:
    """The content of an answer."""
    return {name: value for name, value in (row.answer or {}).items() if name not in ("by", "instead_of")}


def waits(frame: dict[str, Any]) -> bool:
    """Whether a run may have asked."""
    return bool(frame["type"] == "stream.gap" or (frame["type"] == "progress" and frame["step"] == "paused"))


def _answer_of(request: HumanRequest, content: Any) -> dict[str, Any]:
    """The arguments of `answers.answer`: REST's body as JSON, or a plain text. That is the answer to a question, the
    result of a client's tool, else the action."""
    value = content
    if isinstance(content, list):
        value = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if request.kind == Kind.CLIENT_TOOL:
        return {"action": "answer", "text": value if isinstance(value, str) else to_json(value).decode()}
    if isinstance(value, str):
        try:
            decoded = read_json(value)
        except ValueError:
            decoded = None
        value = decoded if isinstance(decoded, dict) else value
    if isinstance(value, Mapping):
        body = value if "action" in value else {"action": "answer", "values": value}
        read = AnswerSerializer(data=body)
        read.is_valid(raise_exception=True)
        return {name: item for name, item in read.validated_data.items() if item is not None}
    if request.kind in (Kind.QUESTION, Kind.INPUT):
        return {"action": "answer", "text": str(value)}
    return {"action": str(value).strip()}


def _pending(session: Session | UUID | None) -> list[HumanRequest]:
    """The pending requests of the session's run trees, oldest first."""
    roots = list(Run.objects.filter(session=session, parent=None, status__in=ACTIVE).values_list("id", flat=True))
    trees = Run.objects.filter(Q(id__in=roots) | Q(root__in=roots)).values("id")
    rows = HumanRequest.objects.select_related("run__root", "answered_by").order_by("id")
    return list(rows.filter(run__in=trees, status=HumanRequest.Status.PENDING)) if roots else []


def asked(exchange: Exchange) -> list[dict[str, Any]]:
    """The open requests of the session that the user may answer, as REST shows each."""
    return asked_by(exchange)[0]


def asked_by(exchange: Exchange) -> tuple[list[dict[str, Any]], Run]:
    """`asked`, and the root of the exchange as it is now if there are some."""
    rows = _open(exchange.user, exchange.run.session_id)
    roots = (row.run.root or row.run for row in rows)
    root = next((root for root in roots if root.id == exchange.run.tree_id), exchange.run)
    return [dict(RequestDetailSerializer(row).data) for row in rows], root


def waits_for_others(exchange: Exchange) -> bool:
    """Whether the run is suspended, and its open requests are for other people than the user."""
    run = Run.objects.filter(id=exchange.run.tree_id, status=Status.SUSPENDED)
    session = exchange.run.session_id
    return run.exists() and bool(_pending(session)) and not _open(exchange.user, session)


def _open(user: Any, session: UUID | None) -> list[HumanRequest]:
    return [row for row in marked(_pending(session), user) if row.may_answer] if session else []


def _check_answered(user: Any, session: UUID | None) -> None:
    """A message to a run that waits for its user would wait behind it, with nobody to answer. Calls of the client's
    tools end with it, see `submit`."""
    if rows := [row for row in _open(user, session) if row.kind != Kind.CLIENT_TOOL]:
        raise ConflictError(f"answer request {rows[0].id} of this conversation first, then send the message")
