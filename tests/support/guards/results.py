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
        AGENTS + "json_schema.py",
        "    for ref in _references(schema):",
        "    for ref in ():",
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
        "(row := ctx.effects.journal.system(path)) is not None",
        "(row := None) is not None",
        (UNIT + "test_pins.py",),
    ),
    Mutant(
        "pin: what was done in computing",
        RUNTIME + "pins.py",
        "        _pass_over(ctx, scope.prefix)",
        "        pass",
        (UNIT + "test_pins.py",),
    ),
]
