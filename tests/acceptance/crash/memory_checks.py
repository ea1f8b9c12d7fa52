"""What has to be true of what agents remember: each model call reads the conversation as its stories say it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ravi_django.kernel import ChatMessage, Role
from tests.acceptance.crash.story import Story
from tests.support.columns import ROLES

if TYPE_CHECKING:
    from tests.acceptance.crash.checks import Evidence, Row

AGENTS = ("lab", "heir")  # that have a memory
ASSISTANT, USER = "assistant", "user"
ROLE_NAMES = {number: name for name, number in ROLES.items()}
SESSIONS = 20  # that a delegated agent remembers
Said = list[list[str]]  # pairs of speaker and text


def view_of(messages: Sequence[ChatMessage]) -> dict[str, Any]:
    """For the ledger, of a model call: its whole view, and what people and agents said in it."""
    said = [
        [message.name or str(message.role.value), message.text]
        for message in messages
        if message.role is Role.USER or (message.role is Role.ASSISTANT and not message.tool_calls)
    ]
    whole = json.dumps([message.to_json() for message in messages], sort_keys=True)
    return {"view": sha256(whole.encode()).hexdigest()[:16], "said": said}


def of_memory(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Pairs of a run and what is wrong with it."""
    for run in evidence.runs:
        run_id = str(run["id"])
        lines = [line for line in evidence.ledger.get(run_id, []) if line.get("agent") in AGENTS]
        for wrong in _views(evidence, run, lines):
            yield run_id, wrong
        if run["parent_id"] is None and run["status"] == "completed" and lines:
            turns = _shared(evidence, run_id)
            shared = [[ROLE_NAMES[turn["role"]], _text(evidence, run_id, turn)] for turn in turns]
            if shared != (wanted := [[USER, evidence.asked_for(run_id)], [ASSISTANT, run["output"]]]):
                yield run_id, f"shares {_short(shared)}, not {_short(wanted)}"


def _views(evidence: Evidence, run: Row, lines: list[Row]) -> Iterator[str]:
    """The same view of a call under each lease once its read is recorded, and what the stories say in it."""
    views: dict[tuple[str, int], set[str]] = {}
    for line in lines:
        reads = _reads(evidence, run, line["agent"])
        if run["parent_id"] is not None and (not reads or line["epoch"] < reads[0]["epoch"]):
            continue  # a sibling may end before it reads again
        views.setdefault((line["agent"], line["number"]), set()).add(line["view"])
        wanted = _of_child(evidence, run, reads[0]) if reads and run["parent_id"] else _of_root(evidence, run, line)
        if wanted is not None and line["said"] != wanted:
            yield f"call {line['number']} of {line['agent']} reads {_short(line['said'])}, not {_short(wanted)}"
        if run["parent_id"] is not None and (forgotten := _told(evidence, run) - {text for _, text in line["said"]}):
            yield f"call {line['number']} of {line['agent']} forgot {_short([[USER, text] for text in forgotten])}"
    for (agent, number), several in views.items():
        if len(several) > 1:
            yield f"call {number} of {agent} had {len(several)} views"


def _of_root(evidence: Evidence, run: Row, line: Row) -> Said:
    """The earlier messages of the conversation with their answers, and this one."""
    said: Said = []
    talk = [each for each in evidence.runs if each["session_id"] == run["session_id"] and each["parent_id"] is None]
    for each in sorted(talk, key=lambda each: each["created_at"]):
        story = evidence.story(str(each["id"]))
        said.append([USER, evidence.asked_for(str(each["id"])) or ""])
        if story.heir is not None and line["agent"] == "heir":
            said.append([USER, story.heir.text])
        if each["id"] == run["id"]:
            break
        by = each["agent"].partition("/")[2]
        said.append([ASSISTANT if by == line["agent"] else by, story.answer(evidence.not_run(each))])
    return said


def _of_child(evidence: Evidence, run: Row, read: Row) -> Said | None:
    """The tasks that it remembers, in the order of their ends, and its own. None where one of them has no answer."""
    known = (read["result"] or {}).get("sessions") or []
    of_session = {str(each["session_id"]): each for each in evidence.runs if each["parent_id"] is not None}
    tasks = [of_session[session_id] for session_id in known]
    said: Said = []
    tasks.sort(key=lambda task: evidence.sessions[str(task["session_id"])]["ended_at"])
    for task in tasks[-SESSIONS:]:  # of older ones it reads summaries alone
        if task["status"] != "completed":
            return None
        story = evidence.story(str(task["id"]))
        said += [[USER, evidence.asked_for(str(task["id"])) or ""], [ASSISTANT, story.answer(evidence.not_run(task))]]
    return [*said, [USER, evidence.asked_for(str(run["id"])) or ""]]


def _told(evidence: Evidence, run: Row) -> set[str]:
    """The tasks that were answered before this child's: of its conversation's earlier messages, and of earlier turns of
    the runs above it. Empty where it remembers nothing, or has more of them than it reads."""
    if evidence.sessions[str(run["session_id"])]["memory_of"] is None:
        return set()
    texts: set[str] = set()
    by_id = {str(each["id"]): each for each in evidence.runs}
    child = run
    while child["parent_id"] is not None:
        task, child = evidence.asked_for(str(child["id"])), by_id[str(child["parent_id"])]
        for turn in evidence.story(str(child["id"])).all_turns():
            if any(step.arguments.get("task") == task for step in turn):
                break
            texts |= _delegated(Story((turn,)))
    for each in evidence.runs:
        if each["session_id"] == child["session_id"] and each["created_at"] < child["created_at"]:
            texts |= _delegated(evidence.story(str(each["id"])))
    return texts if len(texts) <= SESSIONS else set()


def _delegated(story: Story) -> set[str]:
    """The tasks of the delegations with memory, also of those below them."""
    texts: set[str] = set()
    for step in story.steps():
        if step.tool == "delegate" and step.story and not {"to", "urgent"} & step.arguments.keys():
            texts |= {step.arguments["task"], *_delegated(step.story)}
    return texts


def _reads(evidence: Evidence, run: Row, agent: str) -> list[Row]:
    journal = evidence.journal.get(str(run["id"]), [])
    return [row for row in journal if (row["kind"], row["name"]) == ("history.read", f"react/{agent}")]


def _shared(evidence: Evidence, run_id: str) -> list[Row]:
    return [turn for turn in evidence.turns.get(run_id, []) if turn["shared"]]


def _text(evidence: Evidence, run_id: str, turn: Row) -> str:
    held = {row["seq"]: row for row in evidence.journal.get(run_id, [])}
    blocks = turn["content"] if turn["entry_seq"] is None else held[turn["entry_seq"]]["result"]["content"]
    return "".join(block.get("text", "") for block in blocks)


def _short(said: Said) -> list[str]:
    return [f"{by}: {text[:60]}" for by, text in said]
