"""Many people answer the same requests at once: each is answered once, and its run goes on with that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from project.process import wait_until
from ravi_django import submit
from ravi_django.kernel import ChatPayload
from ravi_django.models import AuditRecord, HumanRequest, Run, Status
from tests.acceptance.people.crowd import answer_all, people
from tests.support.cases import sizes
from tests.support.runs import BOUND_S, code, on_postgresql
from tests.support.world import close_worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600), on_postgresql]

SEED = 7  # of who answers what when


@pytest.fixture
def engine(settings: Any) -> Iterator[None]:
    """Runs are driven in this process, and by hints alone: a lost wake-up stays lost while the test lasts."""
    quiet = {"ENGINE": "inline", "SWEEP_S": 3600.0, "LEASE_S": 240.0, "HEARTBEAT_S": 20.0}
    settings.RAVI = {**settings.RAVI, **quiet}
    close_worker()
    yield
    close_worker()


@pytest.fixture(params=sizes(20, 50))
def many(request: pytest.FixtureRequest) -> int:
    """So many people, and as many requests."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def crowd(transactional_db: None, many: int) -> list[Any]:
    return people(many)


@pytest.fixture
def asked(engine: None, crowd: list[Any], many: int, django_user_model: Any) -> list[HumanRequest]:
    """Requests of as many runs, each of which waits: questions and approvals."""
    owner = django_user_model.objects.create_user("owner")

    async def story(ctx: Any, inbox: Any) -> str:
        assert isinstance(inbox[0].payload, ChatPayload)
        number = int(inbox[0].payload.message.text)
        if number % 2:
            decision = await ctx.approve("pay", {"amount": number}, to="staff")
            assert decision.allows
            return f"{decision.reason}, signed {decision.by}"
        told = await ctx.ask_human(f"Question {number}?", to="staff")
        return f"{told['text']}, signed {told['by']}"

    code(story)
    for number in range(many):
        submit("test/code", str(number), user=owner)
    assert wait_until(lambda: Run.objects.filter(status=Status.SUSPENDED).count() == many, BOUND_S)
    found = list(HumanRequest.objects.filter(status="pending"))
    assert Counter(request.kind for request in found) == {"question": many // 2, "approval": many // 2}
    return found


def test_each_request_is_answered_once_and_every_run_goes_on(
    asked: list[HumanRequest], crowd: list[Any], many: int
) -> None:
    tally = answer_all(crowd, asked, SEED)
    print(f"\n{len(tally.won) + len(tally.lost)} answers in {tally.wall_s:.1f} s")

    assert not tally.wrong, tally.wrong[:3]
    assert (len(tally.won), len(tally.lost)) == (many, many * (many - 1))
    winners = dict(tally.won)
    assert set(winners) == {request.id for request in asked}
    for request_id, name, words in tally.lost:
        assert name != winners[request_id]
        assert words == f"Request {request_id} was already answered by {winners[request_id]}."
    going = Run.objects.exclude(status=Status.COMPLETED)
    assert wait_until(lambda: not going.exists(), BOUND_S), Counter(going.values_list("status", flat=True))
    for request in HumanRequest.objects.select_related("run", "answered_by"):
        winner = winners[request.id]
        assert (request.status, request.version, request.answered_by.get_username()) == ("answered", 2, winner)
        assert request.run.output == f"says {winner}, signed {winner}"
    records = AuditRecord.objects.filter(event="request")
    assert Counter(records.values_list("name", flat=True)) == {"opened": many, "answered": many}
    answered = {row.detail["request"]: row.detail["by"] for row in records.filter(name="answered")}
    assert answered == {str(request_id): name for request_id, name in winners.items()}
