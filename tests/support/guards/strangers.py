"""Guards of what is written by strangers and by tools: its time, its size, and who it says it is from."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, UNIT, Mutant

_LLM = "ravi_django/capabilities/llm/"
_LINEAR = "tests/unit/project/test_linear_time.py"
_RUNS = "tests/acceptance/api/test_api_runs.py"

STRANGERS = [
    Mutant(
        "a template's marks are counted before the lexer runs",
        RUNTIME + "prompt_engine.py",
        "        _check_marks(text)\n",
        "",
        (_LINEAR,),
    ),
    Mutant(
        "the rehearsal model reads the beginning of a message",
        _LLM + "rehearsal_rules.py",
        "text=messages[last].text[:MOST_READ].strip()",
        "text=messages[last].text.strip()",
        (_LINEAR,),
    ),
    Mutant(
        "a client's message has no block that only models and tools write",
        RUNTIME + "submit.py",
        "if block.type not in FROM_CLIENTS:",
        "if False:",
        (_RUNS,),
    ),
    Mutant(
        "a tool result in a user's message is the user's text",
        _LLM + "wire.py",
        "is_tool = message.role is Role.TOOL",
        "is_tool = True",
        ("tests/unit/capabilities/llm/test_wire.py",),
    ),
    Mutant(
        "what a tool raises is read without its keys",
        RUNTIME + "tool_results.py",
        "text=storable(redact(text))",
        "text=storable(text)",
        (UNIT + "test_tool_garbage.py",),
    ),
    Mutant(
        "a ticket is used up at an unknown address",
        "ravi_django/ws/consumer.py",
        "await access.user_of(self.scope)  # a ticket",
        "pass  # a ticket",
        ("tests/acceptance/ws/test_ws_refusals.py",),
    ),
    Mutant(
        "a secret of a webhook is encrypted",
        RUNTIME + "sealed.py",
        "return _keys().encrypt(text.encode()).decode()",
        "return text",
        ("tests/acceptance/api/test_api_hooks.py",),
    ),
    Mutant(
        "a page of a list is bounded in bytes",
        "ravi_django/api/pagination.py",
        "if kept and total > MAX_BYTES:",
        "if False:",
        ("tests/acceptance/api/test_api_conversations.py",),
    ),
]
