"""Handing a run over: one who goes on, one who is answered, nothing lost and nothing told twice."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_RUNS = (UNIT + "test_handoff.py",)
_SESSIONS = (UNIT + "test_handoff_sessions.py",)
_REACT = (UNIT + "test_handoff_react.py",)
_STORE = STORE + "handing_over.py"
_CALL = RUNTIME + "handoff.py"

HANDOFF = [
    Mutant(
        "handoff: an agent that is busy in the session is not doubled",
        _STORE,
        "                raise Occupied\n",
        "                pass\n",
        _SESSIONS,
    ),
    Mutant(
        "handoff: the session is locked before the look at its runs",
        _STORE,
        "            lock_session(run)\n",
        "",
        _SESSIONS,
    ),
    Mutant(
        "handoff: what was queued behind the first agent is promoted",
        _STORE,
        "[*hints, *promote(run)]",
        "hints",
        _SESSIONS,
    ),
    Mutant(
        "handoff: one may hand over to oneself",
        _STORE,
        ".exclude(id=run.id).exists()",
        ".exists()",
        _RUNS,
    ),
    Mutant(
        "handoff: answers to the first agent's asks are no messages to the other",
        _STORE,
        "        _close_asks(run, reason)\n",
        "",
        _RUNS,
    ),
    Mutant(
        "handoff: the first agent's children end with its part",
        _STORE,
        "hints = cancel_children(run, reason, held)",
        "hints: list[UUID] = []",
        _RUNS,
    ),
    Mutant(
        "handoff: the task comes before what is unread",
        _STORE,
        "[*handoff.messages, *unread]",
        "[*unread, *handoff.messages]",
        _RUNS,
    ),
    Mutant(
        "handoff: the spec's version is the other's",
        _STORE,
        "            agent_version=handoff.version,\n",
        "",
        _SESSIONS,
    ),
    Mutant(
        "handoff: what came behind the message goes along",
        _CALL,
        "return given[place], [message for message in given[place + 1 :] if message.id not in ctx.answered]",
        "return given[place], []",
        (*_REACT, *_RUNS),
    ),
    Mutant(
        "handoff: by default the first message without a reply",
        _CALL,
        "if message.id not in ctx.answered), 0)",
        "), 0)",
        _RUNS,
    ),
    Mutant(
        "handoff: the task has the id that the ask is of",
        _CALL,
        '"id": answered.id if answered.reply_to else message_id,',
        '"id": message_id,',
        _RUNS,
    ),
    Mutant(
        "handoff: a refusal is told by every replay",
        _CALL,
        "        asks.raise_recorded(row)\n",
        "        pass\n",
        (*_RUNS, *_SESSIONS),
    ),
    Mutant(
        "handoff: a circle ends",
        _CALL,
        "if times < conf.MAX_DEPTH:",
        "if times < 10 * conf.MAX_DEPTH:",
        _RUNS,
    ),
    Mutant(
        "handoff: what may have happened is decided before it is forgotten",
        _CALL,
        "        await tool_calls.decide_left(ctx)\n",
        "        pass\n",
        _RUNS,
    ),
    Mutant(
        "handoff: nothing recorded is left unasked",
        _CALL,
        "if effects.journal.replaying:",
        "if False:",
        _RUNS,
    ),
    Mutant(
        "handoff: no tool hands over from inside of its call",
        _CALL,
        "if _inside_a_tool():",
        "if False:",
        _RUNS,
    ),
    Mutant(
        "handoff: a row is given its own variables alone",
        _CALL,
        "for name in declared if known.get(name) is not None}",
        "for name in known}",
        _SESSIONS,
    ),
    Mutant(
        "handoff: the last turn of a refused one is not kept",
        RUNTIME + "settle.py",
        "store.requeue(lease, entries), Status.PENDING",
        "store.requeue(lease, entries, turns), Status.PENDING",
        _REACT,
    ),
    Mutant(
        "handoff: a retry asks again for what was refused",
        STORE + "retry.py",
        ', "run.handoff")',
        ")",
        _SESSIONS,
    ),
    Mutant(
        "handoff: frames made again are from who drove the run then",
        RUNTIME + "frames.py",
        'if row.kind == "run.handoff" and row.error is None:',
        "if False:",
        _SESSIONS,
    ),
    Mutant(
        "handoff: the next worker tells it where the last one died",
        RUNTIME + "engine.py",
        'if lease.run.generation and effects.journal.system("@started") is None:',
        "if False:",
        _SESSIONS,
    ),
    Mutant(
        "handoff: the first of a turn that is not refused wins, the others are told",
        "ravi_django/agents/handing_over.py",
        "            elif index in self._results and index not in self._finishes:",
        "            elif index in self._results:",
        _REACT,
    ),
    Mutant(
        "handoff: a refused call is told why, though the next one hands over",
        "ravi_django/agents/handing_over.py",
        "                del self._finishes[index]\n",
        "",
        _REACT,
    ),
    Mutant(
        "handoff: a message for the first agent does not reach the other",
        STORE + "asking.py",
        "if not now.is_terminal and now.agent == run.agent:",
        "if not now.is_terminal:",
        (UNIT + "test_asks.py",),
    ),
]
