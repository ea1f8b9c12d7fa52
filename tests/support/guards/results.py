"""Typed results: what counts as one, how often the model is asked, and what of a run is computed once."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, UNIT, Mutant

AGENTS = "ravi_django/agents/"
TYPED = ("tests/unit/agents/test_typed_results.py", "tests/unit/agents/test_result_type.py")

RESULTS = [
    Mutant("result: so many tries", AGENTS + "goal.py", "        if not self._left:", "        if False:", TYPED),
    Mutant("result: none beside a failed call", AGENTS + "goal.py", "        if failed:", "        if False:", TYPED),
    Mutant(
        "result: words to the model are bounded",
        AGENTS + "result.py",
        "return words if len(words) <= _MAX_WORDS else",
        "return words if True else",
        TYPED[1:],
    ),
    Mutant(
        "result: a schema refers to nothing outside",
        AGENTS + "schema_check.py",
        "        for ref in (schema[word] for word in _REFS if isinstance(schema.get(word), str)):",
        "        for ref in ():",
        TYPED[1:],
    ),
    Mutant(
        "result: the output is its text",
        RUNTIME + "settle.py",
        "ctx.replied and not isinstance(returned, ResultText)",
        "ctx.replied",
        (UNIT + "test_typed_runs.py",),
    ),
    Mutant(
        "pin: the recorded value",
        RUNTIME + "pins.py",
        "row = ctx.effects.journal.system(path)",
        "row = None",
        (UNIT + "test_pins.py",),
    ),
    Mutant(
        "pin: what was done in computing",
        RUNTIME + "pins.py",
        "        ctx.effects.journal.pass_over(_place_of(row) or scope.prefix)",
        "        pass",
        (UNIT + "test_pins.py",),
    ),
    Mutant(
        "pin: one computation at a time",
        RUNTIME + "pins.py",
        "under_way = ctx.pinning.get(name)",
        "under_way = None",
        (UNIT + "test_pins.py",),
    ),
    Mutant(
        "instructions: not for who talks to the agent",
        "ravi_django/api/serializers.py",
        'row.kind == "pinned" and ',
        "False and ",
        (UNIT + "test_pins.py",),
    ),
]
