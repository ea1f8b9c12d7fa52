"""Find the conversation that a client goes on with, by what it sends: an id of ours, else the texts of its history.

Both are looked up among the user's own conversations. Nothing of the history is stored: a text that no conversation of
the user has only means that none fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db.models.functions import Coalesce, Right

from ravi_django.conf import conf
from ravi_django.kernel import AgentId
from ravi_django.models import HumanRequest, Run, Session, Status, Turn
from ravi_django.models.session import BLOCKS, row_blocks
from ravi_django.people import site_rules
from ravi_django.runs import checks
from ravi_django.services.exchanges import quotes_instructions

NEWEST = 200  # root runs of the user and the agent whose outputs are compared
SESSIONS = 20  # whose turns are compared
MOST_TURNS = 2000  # that are read, and messages of a history
TAIL = 100  # characters of an output


@dataclass(frozen=True, slots=True)
class Past:
    """A message of the client's history, as far as it is read."""

    is_users: bool
    id: str
    text: str
    call: str = ""  # id of its last tool call, which may be a request of ours


def past(messages: Sequence[Any], end: int) -> list[Past]:
    """The newest messages before the number `end`. They are not validated."""
    newest = (message for message in messages[max(0, end - MOST_TURNS) : end] if isinstance(message, dict))
    return [_past(message) for message in newest if not _is_system(message)]


def _is_system(message: dict[str, Any]) -> bool:
    return message.get("role") in ("system", "developer")


def _past(message: dict[str, Any]) -> Past:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        content = None  # results of tools, thoughts
    calls = message.get("tool_calls")
    last = calls[-1] if isinstance(calls, list) and calls and isinstance(calls[-1], dict) else {}
    call = message.get("call_id") if message.get("type") == "function_call" else last.get("id")
    return Past(role == "user", str(message.get("id", "")), text_of(content), str(call or ""))


def text_of(content: Any) -> str:
    """The text of a message, without white space."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, dict) and part.get("type") in _TEXTS)
    return "".join(text.translate(_SPACES) for text in texts if isinstance(text, str))


_TEXTS = ("text", "input_text", "output_text")
_SPACES = {number: None for number in range(0x3001) if chr(number).isspace()}  # less memory than a pattern


def run_of(id: str) -> UUID | None:
    """The run in an id of ours: of a response, a message, or an item of it."""
    match = _OURS.match(id)
    return UUID(match[1]) if match else None


_OURS = re.compile(r"(?:resp_|msg_)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/|$)")


def of_run(user: Any, run: UUID | None) -> Session | None:
    """The user's conversation in which the root run is."""
    if run is None:
        return None
    session: Session | None = sessions_of(user).filter(runs__id=run, runs__parent=None).first()
    return session


def continued_by(run: Run) -> Session | None:
    """The conversation of the run, if it did not begin with it."""
    earlier = Run.objects.filter(session=run.session_id, parent=None, id__lt=run.id)
    return run.session if earlier.exists() else None


def of_request(user: Any, id: str) -> Session | None:
    """The user's conversation in which the request was made."""
    if (request := checks.uuid_of(id)) is None:
        return None
    root = Coalesce("run__root__session", "run__session")
    asking = HumanRequest.objects.filter(id=request).annotate(session=root).values("session")
    session: Session | None = sessions_of(user).filter(id__in=asking).first()
    return session


def sessions_of(user: Any) -> Any:
    rows = Session.objects.filter(owner=user, erasure=None, parent_session=None)  # a superuser's own ones too
    tenant = site_rules.tenant_for(user)
    return rows.filter(tenant=tenant) if tenant else rows


def find(user: Any, agent: AgentId, history: Sequence[Past]) -> Session | None:
    """The conversation that the history is of."""
    ids = (run for message in reversed(history) if not message.is_users and (run := run_of(message.id)))
    calls = (message.call for message in reversed(history) if checks.uuid_of(message.call) is not None)
    return of_run(user, next(ids, None)) or of_request(user, next(calls, "")) or _by_texts(user, agent, history)


def has_answer(history: Sequence[Past]) -> bool:
    """Whether an agent has answered. A greeting is no answer."""
    by_agents = [message for message in history if not message.is_users]
    is_ours = any(run_of(message.id) or checks.uuid_of(message.call) for message in by_agents)
    return is_ours or bool(_exchanges(history))


def _by_texts(user: Any, agent: AgentId, history: Sequence[Past]) -> Session | None:
    """The conversation of the newest run with the last answer whose shared turns are the history."""
    sent = _exchanges(history)
    if not sent or not (last := sent[-1][1]):
        return None
    runs = Run.objects.filter(session__in=sessions_of(user), owner=user, agent=str(agent), parent=None)
    runs = runs.filter(status=Status.COMPLETED).order_by("-id")
    tails = runs.annotate(tail=Right("output", TAIL)).values_list("session_id", "tail")[:NEWEST]
    ends = ((session, text_of(tail)) for session, tail in tails)
    candidates = [*dict.fromkeys(session for session, tail in ends if tail and last.endswith(tail))][:SESSIONS]
    if not candidates:
        return None
    room = sum(map(len, chain(*sent))) + int(conf.MAX_INPUT_BYTES)
    fitting = {id for id, turns in _turns(candidates, room) if _fits(sent, _exchanges(turns))}
    chosen = next((id for id in candidates if id in fitting), None)
    return None if chosen is None else sessions_of(user).filter(id=chosen).first()


def _turns(sessions: Sequence[UUID], room: int) -> Iterator[tuple[UUID, list[Past]]]:
    """The shared turns of each session with at most `room` characters. A few are in memory with their content."""
    columns = ("session_id", "role", *BLOCKS)
    rows = Turn.objects.filter(session__in=sessions, shared=True, keeps=None).order_by("-session_id", "position")
    read = rows.values_list(*columns, named=True)[:MOST_TURNS].iterator(50)
    for session, turns in groupby(read, key=attrgetter("session_id")):
        texts, left = [], room
        for row in turns:
            texts.append(Past(row.role == "user", "", text_of(row_blocks(row))))
            left -= len(texts[-1].text)
            if left < 0:
                break
        else:
            yield session, texts


def _exchanges(messages: Iterable[Past]) -> list[tuple[str, str]]:
    """The texts of the user that have an answer, each with it. A client may have several messages for each answer; a
    run that failed has none."""
    exchanges: list[tuple[str, str]] = []
    for message in messages:
        if message.is_users:
            exchanges.append((message.text, ""))
        elif exchanges:
            asked, answer = exchanges[-1]
            exchanges[-1] = (asked, answer + message.text)
    return [(asked, answer) for asked, answer in exchanges if answer]


def _fits(sent: list[tuple[str, str]], stored: list[tuple[str, str]]) -> bool:
    """A stream also has what the agent says before its answer, and a quoted note is before the user's text."""
    if len(sent) != len(stored):
        return False
    pairs = zip(sent, stored, strict=True)
    return all(_is_same(asked, text) and answer.endswith(known) for (asked, answer), (text, known) in pairs)


def _is_same(sent: str, stored: str) -> bool:
    return stored == sent or (quotes_instructions() and stored.endswith(sent))
