"""A request on the stream of the run that asks: the same object that REST shows, and what became of it."""

import asyncio
from datetime import UTC, datetime

import pytest

from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.services.request_shapes import RequestSerializer, marked
from tests.support import world
from tests.support.approvals import payer, paying, run_of, user
from tests.support.cases import case
from tests.support.runs import code, drive, make_run
from tests.support.world import Source, cancel, retry

pytestmark = pytest.mark.django_db(transaction=True)

ENVELOPE = {"type", "seq", "ts", "parent", "parent_agent", "depth"}
OF_THE_ROW = {"may_answer", "actions", "answer", "not_before", "escalates_at"}  # each user's, or of a later moment


def of_requests(run):
    return [frame for frame in world.events_page(run.id)[0] if frame["type"].startswith("request")]


def as_rest(request):
    row = HumanRequest.objects.select_related("run", "answered_by").get(id=request.id)
    return {
        name: value for name, value in RequestSerializer(marked([row], None)[0]).data.items() if name not in OF_THE_ROW
    }


def without_envelope(frame):
    return {name: value for name, value in frame.items() if name not in ENVELOPE}


def asking(timeout=None):
    async def story(ctx, inbox):
        told = await ctx.ask_human("Which?", ["red", "blue"], context="The door.", free_text=False, timeout=timeout)
        return told["action"]

    code(story)
    return drive(make_run())


def approving(to="staff"):
    user("carla", is_staff=True)  # somebody whom it means
    payer(paying([]), approvers=to)
    return drive(run_of())


@pytest.mark.parametrize("make", [asking, lambda: asking(timeout=3600), approving])
def test_the_frame_is_the_object_that_rest_shows(make):
    run = make()

    (frame,) = of_requests(run)

    shown = without_envelope(frame)
    assert shown == as_rest(HumanRequest.objects.get())
    assert (shown["run"], shown["root"], shown["agent"]) == (str(run.id), str(run.id), run.agent)
    assert (shown["status"], shown["version"], shown["answered_by"], shown["answered_at"]) == ("pending", 1, None, None)
    assert {"details", "schema", "call_id"} & frame.keys() == set()
    assert all(frame[name].endswith("Z") for name in ("created_at", "expires_at") if frame[name])


def test_a_request_that_is_opened_again_is_shown_as_it_is_then():
    async def story(ctx, inbox):
        question = asyncio.ensure_future(ctx.ask_human("Which?", timeout=3600))
        await ctx.sleep_until_signal("go", until=ctx.now())
        question.cancel()
        raise ValueError("not yet")

    code(story)
    run = drive(make_run())
    assert run.status == Status.FAILED
    retry(run.id)

    first, closed, again = of_requests(run)

    assert (first["version"], closed["status"], closed["answered_by"]) == (1, "cancelled", None)
    assert without_envelope(again) == as_rest(HumanRequest.objects.get())
    assert (again["id"], again["status"], again["version"]) == (first["id"], "pending", 3)


@pytest.mark.parametrize(("make", "by"), [(asking, "ann"), (approving, None)])
def test_what_was_answered_is_closed_with_who_has(make, by):
    run = make()
    request = HumanRequest.objects.get()
    ann = user("ann", is_superuser=True)
    said = {"text": "red"} if request.kind == "question" else {}
    world.answer(request, "answer" if said else "deny", by=ann if by else None, **said)
    drive(run)

    closed = of_requests(run)[1]

    assert (closed["type"], closed["id"]) == ("request.closed", str(request.id))
    assert (closed["status"], closed["answered_by"]) == ("answered", by)


@pytest.mark.parametrize(
    ("make", "became"), [(lambda: asking(timeout=60), "cancelled"), (lambda: approving(to=[("staff", 60)]), "expired")]
)
def test_what_nobody_has_answered_or_ends_with_its_run_is_closed_as_such(clock, make, became):
    run = make()
    if became == "cancelled":
        cancel(run.id, "enough")
    else:
        clock.advance(61)
        drive(run)

    closed = of_requests(run)[1]

    assert (closed["status"], closed["answered_by"]) == (HumanRequest.objects.get().status, None) == (became, None)


def test_a_row_that_closes_one_says_what_became_of_it():
    closed, source = "request.closed", Source("root", "run", "test/code", None, 0, 1)
    for kind, result, told in [
        ("ask_human", {"action": "answer", "text": "red", "by": "ann"}, "answered"),
        ("ask_human", {"action": "expired", "text": "", "by": ""}, "expired"),
        ("ask_human", {"action": "signal", "text": "", "by": "", "payload": 1}, "cancelled"),
        (closed, {"answer": {"action": "answer", "text": "red", "by": "ann"}}, "answered"),
        (closed, {"answer": {"outcome": "fail"}}, "answered"),
        (closed, {}, "answered"),
    ]:
        fields = {"phase": "result", "result": {"id": "0192", **result}, "finished_at": datetime.now(UTC)}
        (found,) = world.frames_durable(source, JournalEntry(kind=kind, path="@request.x.1", **fields), 4)
        frame = found.body()
        with case(kind, result):
            assert (frame["type"], frame["id"], frame["status"]) == (closed, "0192", told)
