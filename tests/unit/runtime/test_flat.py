"""A turn of a long run costs what a turn of a short one does."""

import sys

import pytest

from ravi_django import tool
from ravi_django.agents import CompactionPipeline, ReActAgent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.kernel import ToolUseBlock
from ravi_django.testing import ScriptedModel
from tests.support.runs import drive, make_run
from tests.support.world import register

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_late_turn_makes_no_more_calls_in_python_than_an_early_one(settings):
    settings.RAVI = {**settings.RAVI, "MAX_TOOL_CALLS": 1000}
    made, seen = 0, []

    def count(frame, event, argument):
        nonlocal made
        made += event == "call"

    @tool
    async def step() -> str:
        """Do the next step."""
        seen.append(made)
        return "done"

    script = [[ToolUseBlock(tool_name="step", arguments={}, call_id=f"c{number}")] for number in range(150)]
    register(
        ReActAgent(
            "long",
            model=ScriptedModel([*script, "ready"], record=False),
            tools=[step],
            context=ContextConfig(DjangoHistoryProvider(), CompactionPipeline()),
            max_iterations=200,
        )
    )
    sys.setprofile(count)
    try:
        run = drive(make_run("react/long"))
    finally:
        sys.setprofile(None)

    assert (run.status, len(seen)) == ("completed", 150)
    early, late = seen[40] - seen[10], seen[145] - seen[115]
    assert late < 1.2 * early, (early, late)
