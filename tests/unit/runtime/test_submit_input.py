"""What may be submitted; what may not names its field, and nothing is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ravi_django import submit
from ravi_django.conf import conf
from ravi_django.kernel import (
    AgentId,
    AgentNotFoundError,
    ChatMessage,
    ChatPayload,
    ExecutionBudget,
    InputTooLargeError,
    InvalidInputError,
    Message,
    Priority,
    TextBlock,
)
from ravi_django.models import InboxMessage, Run, Session
from ravi_django.testing import run_until_idle
from tests.support import world
from tests.support.cases import case, refused
from tests.support.runs import code, make_run

pytestmark = pytest.mark.django_db(transaction=True)


NO_JSON = object()


@pytest.fixture(autouse=True)
def agent():
    async def story(ctx, inbox):
        return inbox[0].payload.message.text.upper()

    return code(story)


@pytest.fixture
def hints(monkeypatch):
    """Where the hints go."""
    sent = []
    world.patch(monkeypatch, "dispatch_send", sent.append)
    return sent


BAD = {
    "input": [
        "",
        "  \n",
        [],
        None,
        7,
        {"text": "x"},
        ["text"],
        [{"type": "text"}],
        [NO_JSON],
        "nul \x00",
        "half \ud800",
    ],
    "session": ["not-a-uuid"],
    "priority": ["urgent", 3],
    "budget": [{"max_turns": 0}, {"max_turn": 1}, "much"],
    "deadline": ["soon", "2030-13-01T00:00:00Z", 7],
    "metadata": [[], {"x": NO_JSON}, {"x": "y" * 20_000}, {"x": "nul \x00"}],
    "idempotency_key": ["", "k" * 201, 7],
    "tenant": ["t" * 101],
}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bad_input_names_its_field_and_writes_nothing(hints):
    for field, values in BAD.items():
        for value in values:
            with case(field, value), refused(field):
                submit("test/code", **{"input": "hello", field: value})
    for agent in ("code", "", "a b/c", 7, None):
        with case(agent), pytest.raises(InvalidInputError):
            submit(agent, "hello")
    for agent in ("test/nobody", AgentId("test", "nobody")):
        with pytest.raises(AgentNotFoundError, match="test/nobody") as caught:
            submit(agent, "hello")
        assert caught.value.field == "agent"

    assert not (Run.objects.exists() or Session.objects.exists())
    assert hints == []


def test_input_over_the_limit_is_refused_and_at_the_limit_taken(hints):
    text = "é" * ((conf.MAX_INPUT_BYTES - 2) // 2)

    submit("test/code", text)
    with pytest.raises(InputTooLargeError):
        submit("test/code", text + "é")

    assert Run.objects.count() == 1


def test_input_may_be_text_blocks_or_a_message(hints, agent):
    message = Message(
        target=agent.id, payload=ChatPayload(message=ChatMessage.of("user", "hi")), metadata={"from": "a test"}
    )

    runs = [submit(agent, given) for given in ("hi", [{"type": "text", "text": "hi"}], [TextBlock(text="hi")], message)]
    run_until_idle()

    assert [Run.objects.get(id=run.id).output for run in runs] == ["HI"] * 4
    assert InboxMessage.objects.get(run=runs[3]).body["metadata"] == {"from": "a test"}


def test_limits_are_kept_with_the_run(hints):
    deadline = datetime(2040, 1, 1, tzinfo=UTC)

    run = submit("test/code", "hello", budget=ExecutionBudget(max_turns=3), deadline=deadline, tenant="acme")

    run.refresh_from_db()
    assert (run.budget, run.deadline, run.tenant) == ({"max_turns": 3}, deadline, "acme")
    assert run.session.tenant == "acme"
    for priority in Priority:
        assert submit("test/code", "hello", priority=priority.name.lower()).priority == priority.value


def test_a_hint_for_each_run_that_can_start(hints):
    runs = [make_run() for _ in range(3)]

    assert world.send_many([run.id for run in runs]) == []
    assert hints == [run.id for run in runs]


def test_a_deadline_without_a_zone_is_the_sites(hints, settings):
    run = submit("test/code", "hello", deadline=datetime(2040, 1, 1, 12))

    assert run.deadline - datetime(2040, 1, 1, 12, tzinfo=UTC) == timedelta(0)
