"""What the compact columns stand for, for readers that have no Django."""

from typing import Any


def numbered(names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split(), 1)}


# In the order of their numbers. Append; change nothing else.
PHASES = numbered("started paused result")
ROLES = numbered("system user assistant tool")
DIGESTS = numbered("arguments instructions tools whole")
KINDS = numbered(
    """
    run.started run.resumed run.suspended run.continued run.retried run.handoff run.forked
    run.completed run.failed run.cancelled run.blocked
    llm.call llm.paid tool.call effect.checked approval ask_human request.opened request.closed
    ask ask.replied child.spawned msg.received msg.sent signal timer
    history.read history.count history.clear history.retention state.set chat.output log now patched pinned replay.drift
    follow follow.updated unfollow emit
    """
)
_NAMES = {
    "kind": {number: name for name, number in KINDS.items()},
    "phase": {number: name for name, number in PHASES.items()},
}


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a journal, by SQL, with its names, and with the content that is stored as its only text."""
    names = {column: _NAMES[column][row[column]] for column in _NAMES}
    result = row["result"]
    if isinstance(result, dict) and "$text" in result:
        text = {"type": "text", "text": result["$text"]}
        result = {"content": [text], **{name: value for name, value in result.items() if name != "$text"}}
    return {**row, **names, "result": result}
