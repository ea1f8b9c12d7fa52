"""Requests that a provider's cache can read: each begins as the one before, in all runs of a conversation."""

from itertools import pairwise

import pytest

from ravi_django import ChatMessage, ContextConfig, ReActAgent, ToolUseBlock, register, tool
from ravi_django.agents.context import DjangoHistoryProvider, InMemoryHistoryProvider
from ravi_django.models import Status
from ravi_django.testing import ScriptedModel
from tests.support.runs import drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@tool
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


class Plain(InMemoryHistoryProvider):
    """A history that stores turns as text, and reads no windows."""

    window = None

    async def get(self, *args, **options):
        return [ChatMessage.model_validate(turn.to_json()) for turn in await super().get(*args, **options)]


def common(before, after):
    """The share of a request that begins the next one."""
    same = next((n for n, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), len(before))
    return same / len(before)


@pytest.mark.parametrize("history", [DjangoHistoryProvider, Plain])
def test_the_default_window_moves_in_steps_across_runs_and_a_restart(clock, history):
    steps = [ToolUseBlock(tool_name="look", arguments={"n": n}, call_id=f"c{n}") for n in range(4)]
    model = ScriptedModel([*steps, "done"])
    context = ContextConfig(history())
    register(ReActAgent("looker", model=model, tools=[look], system_instructions="Look.", context=context))
    session = None
    for number in range(40):  # 160 turns with a tool, 400 messages
        run = make_run("react/looker", text=f"task {number}", session=session)
        session = run.session
        if number == 31:
            drive(run, dies=4)
            run = take_over(clock, run)
        else:
            run = drive(run)
        assert (run.status, run.output) == (Status.COMPLETED, "done")
    requests = [call.messages for call in model.calls]
    assert sum(common(*pair) >= 0.9 for pair in pairwise(requests)) >= 0.95 * (len(requests) - 1)
    # each request has the task, and between one and one and a half windows of a long conversation
    assert all(request[1].role == "user" and request[1].text.startswith("task") for request in requests)
    assert all(100 <= len(request) <= 150 for request in requests[60:])
