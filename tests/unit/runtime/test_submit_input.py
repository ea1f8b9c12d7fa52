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
from tests.support.runs import code, make_run

pytestmark = pytest.mark.django_db(transaction=True)


class NoJson:
    def __repr__(self) -> str:  # the same in every process: test runners compare names
        return "NO_JSON"


NO_JSON = NoJson()


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


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"input": ""}, "input"),
        ({"input": "  \n"}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": {"text": "x"}}, "input"),
        ({"input": ["text"]}, "input"),
        ({"input": [{"type": "text"}]}, "input"),
        ({"input": [NO_JSON]}, "input"),
        ({"input": "nul \x00"}, "input"),
        ({"input": "half \ud800"}, "input"),
        ({"session": "not-a-uuid"}, "session"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 3}, "priority"),
        ({"budget": {"max_turns": 0}}, "budget"),
        ({"budget": {"max_turn": 1}}, "budget"),
        ({"budget": "much"}, "budget"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": "2030-13-01T00:00:00Z"}, "deadline"),
        ({"deadline": 7}, "deadline"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"x": NO_JSON}}, "metadata"),
        ({"metadata": {"x": "y" * 20_000}}, "metadata"),
        ({"metadata": {"x": "nul \x00"}}, "metadata"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 201}, "idempotency_key"),
        ({"idempotency_key": 7}, "idempotency_key"),
        ({"tenant": "t" * 101}, "tenant"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bad_input_names_its_field_and_writes_nothing(hints, given, field):
    with pytest.raises(InvalidInputError) as caught:
        submit("test/code", **{"input": "hello", **given})

    assert caught.value.field == field
    assert not Run.objects.exists()
    assert not Session.objects.exists()
    assert hints == []


@pytest.mark.parametrize("agent", ["test/nobody", AgentId("test", "nobody")])
def test_an_unknown_agent_is_named(hints, agent):
    with pytest.raises(AgentNotFoundError, match="test/nobody") as caught:
        submit(agent, "hello")

    assert caught.value.field == "agent"


@pytest.mark.parametrize("agent", ["code", "", "a b/c", 7, None])
def test_an_address_that_is_none_is_refused(hints, agent):
    with pytest.raises(InvalidInputError):
        submit(agent, "hello")


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


@pytest.mark.parametrize("name", [priority.name.lower() for priority in Priority])
def test_priorities_go_by_name(hints, name):
    assert submit("test/code", "hello", priority=name).priority == Priority[name.upper()].value


def test_limits_are_kept_with_the_run(hints):
    deadline = datetime(2040, 1, 1, tzinfo=UTC)

    run = submit("test/code", "hello", budget=ExecutionBudget(max_turns=3), deadline=deadline, tenant="acme")

    run.refresh_from_db()
    assert (run.budget, run.deadline, run.tenant) == ({"max_turns": 3}, deadline, "acme")
    assert run.session.tenant == "acme"


def test_a_hint_for_each_run_that_can_start(hints):
    runs = [make_run() for _ in range(3)]

    assert world.send_many([run.id for run in runs]) == []
    assert hints == [run.id for run in runs]


def test_a_deadline_without_a_zone_is_the_sites(hints, settings):
    run = submit("test/code", "hello", deadline=datetime(2040, 1, 1, 12))

    assert run.deadline - datetime(2040, 1, 1, 12, tzinfo=UTC) == timedelta(0)
