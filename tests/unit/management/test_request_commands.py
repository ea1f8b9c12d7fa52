"""Requests to people in a terminal: `ravi_requests`, `ravi_answer`, and the transcript of a run."""

import json
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from ravi_django.management.transcript import Transcript
from ravi_django.models import HumanRequest, StickyDecision
from ravi_django.services.request_shapes import RequestSerializer, marked
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.cases import case
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def people(django_user_model):
    users = django_user_model.objects
    return {
        "ann": users.create_user("ann"),
        "bob": users.create_user("bob"),
        "carla": users.create_user("carla", is_staff=True),
    }


@pytest.fixture
def run(people):
    return make_run(owner=people["ann"])


def listed(*args):
    out = StringIO()
    call_command("ravi_requests", *args, stdout=out)
    return out.getvalue()


def ids(*args):
    return [json.loads(line)["id"] for line in listed("--json", *args).splitlines()]


def answered(request, *args):
    out = StringIO()
    call_command("ravi_answer", str(request.id), *args, stdout=out)
    request.refresh_from_db()
    return out.getvalue()


def refused(request, *args, words):
    with pytest.raises(CommandError, match=words) as caught:
        call_command("ravi_answer", str(request.id), *args)
    request.refresh_from_db()
    return caught.value.returncode


def test_a_line_tells_who_is_asked_the_risk_and_the_age(run):
    request = approval_of(run, [("group:finance", 3600), "staff"])
    HumanRequest.objects.filter(id=request.id).update(created_at=timezone.now() - timedelta(minutes=125))
    head, *rest = listed().splitlines()
    assert head.startswith(f"{request.id}  ")
    for shown in ("  2 h  ", "  approval  ", "  high  ", "  to group:finance  ", 'pay({"to": "ACME", "amount": 100})'):
        assert shown in head
    assert rest[0] == "    Pay?"
    assert rest[1].startswith("    from ") and rest[1].endswith(" UTC on the next address is asked")


@pytest.mark.parametrize(
    ("seconds", "age"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (86399, "23 h"), (86400 * 9, "9 d")]
)
def test_the_age_is_in_the_largest_unit(run, seconds, age):
    request = asked_by(run)
    with FakeClock(request.created_at + timedelta(seconds=seconds)):
        assert f"  {age}  " in listed()


def test_the_list_is_by_status_oldest_first(run):
    first, second, third = (asked_by(run) for _ in range(3))
    world.answer(second, text="red")
    assert (ids(), ids("--status", "answered")) == ([str(first.id), str(third.id)], [str(second.id)])
    assert ids("--status", "all") == [str(row.id) for row in (first, second, third)]
    assert (ids("--limit", "1"), ids("--limit", "-1")) == ([str(first.id)], [])
    assert f"{second.id}" in listed("--status", "all") and "  answered  " in listed("--status", "all")
    assert listed("--status", "expired") == "no expired requests\n"


def test_a_user_is_shown_what_they_may_answer(run, settings):
    question, approval, named = asked_by(run), approval_of(run), approval_of(run, "user:bob")
    assert (ids("--user", "ann"), ids("--user", "bob")) == ([str(question.id)], [str(named.id)])
    assert ids("--user", "carla") == [str(approval.id)]
    assert ids() == [str(row.id) for row in (question, approval, named)]
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": lambda user, request: request.id != named.id}
    assert ids("--user", "bob") == []
    with pytest.raises(CommandError, match="no user 'zoe'"):
        listed("--user", "zoe")


def test_what_the_sites_rule_refuses_leaves_room_for_the_rest(run, settings):
    requests = [approval_of(run) for _ in range(4)]
    settings.RAVI = {
        **settings.RAVI,
        "MAY_ANSWER": lambda user, request: request.id in {row.id for row in requests[2:]},
    }
    assert ids("--user", "carla", "--limit", "2") == [str(row.id) for row in requests[2:]]


def test_json_is_as_rest_shows_it(run, people):
    request = approval_of(run)
    (line,) = listed("--json").splitlines()
    (hers,) = listed("--json", "--user", "carla").splitlines()
    row = HumanRequest.objects.select_related("run", "answered_by").get(id=request.id)
    assert json.loads(hers) == RequestSerializer(marked([row], people["carla"])[0]).data == json.loads(line)
    assert json.loads(line)["actions"] == ["approve", "deny", "edit", "skip", "cancel"]


def test_escape_sequences_do_not_reach_the_terminal(run):
    asked_by(run, text="\x1b[31mred\x1b[0m?", details={"context": "\x07<b>x</b>"}, choices=["\x1b]0;a\x07b"])
    assert "\x1b" not in listed() and "\x07" not in listed()
    assert "<b>x</b>" in listed()


@pytest.mark.parametrize(("make", "args", "kept"), [
    (asked_by, ["answer", "red"], {"action": "answer", "text": "red"}),
    (asked_by, ["skip"], {"action": "skip", "text": ""}),
    (asked_by, ["cancel", "--reason", "Late."], {"action": "cancel", "text": "", "reason": "Late."}),
    (approval_of, ["approve"], {"action": "approve"}),
    (approval_of, ["deny", "--reason", "Too much."], {"action": "deny", "reason": "Too much."}),
    (approval_of, ["skip"], {"action": "skip"}),
    (approval_of, ["approve", "--sticky"], {"action": "approve", "sticky": True}),
    (approval_of, ["edit", "--arguments", '{"to": "ACME", "amount": 5}'],
        {"action": "edit", "arguments": {"to": "ACME", "amount": 5}}),
])  # fmt: skip
def test_every_action_is_there(run, make, args, kept):
    request = make(run)
    said = answered(request, *args)
    assert said == f"ravi_answer: {args[0]}; run {run.id} continues\n"
    assert request.answer == {"reason": "", "by": "", **kept}
    assert request.answered_by is None
    assert StickyDecision.objects.exists() == ("--sticky" in args)


@pytest.mark.parametrize("spelled", [[], ["resolve"]])
@pytest.mark.parametrize(("args", "kept"), [
    (["--happened", '{"invoice": 7}'], {"outcome": "happened", "result": {"invoice": 7}}),
    (["--happened", "NaN"], {"outcome": "happened", "result": "NaN"}), (["--run-again"], {"outcome": "run_again"}),
    (["--fail"], {"outcome": "fail"}),
])  # fmt: skip
def test_an_effect_is_resolved(run, spelled, args, kept):
    request = asked_by(run, Kind.UNCERTAIN, tool="pay")
    assert answered(request, *spelled, *args).startswith(f"ravi_answer: {kept['outcome']}; ")
    assert request.answer == {"action": "resolve", "reason": "", "by": "", **kept}


def test_a_user_answers_with_that_users_rights(run, people):
    question, approval = asked_by(run), approval_of(run)
    assert refused(question, "answer", "red", "--user", "bob", words="no request") == 1
    assert refused(approval, "approve", "--user", "ann", words="addressed to staff") == 1
    assert refused(approval, "approve", "--user", "zoe", words="no user 'zoe'") == 2
    assert (question.status, approval.status) == ("pending", "pending")
    answered(approval, "deny", "--user", "carla")
    assert (approval.answered_by, approval.answer["by"]) == (people["carla"], "carla")
    assert refused(approval, "approve", words="already answered by carla") == 1
    assert approval.answer["action"] == "deny"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name an action"), (["resolve"], "name an action"),
        (["approve", "--fail"], "not both"), (["--fail"], "of kind approval"),
        (["approve", "yes"], "text is not allowed with"), (["edit"], "edit needs arguments"),
        (["edit", "--arguments", '{"to": 5}'], "not valid for pay"),
        (["edit", "--arguments", '{"to": NaN}'], "--arguments must be JSON"),
        (["edit", "--arguments", "5"], "edit needs arguments"), (["approve", "--value", "a"], "KEY=TEXT"),
        (["approve", "--value", "a=b"], "values is not allowed with"), (["answer", "yes"], "of kind approval"),
    ],
)  # fmt: skip
def test_what_makes_no_decision_is_refused(run, args, words):
    request = approval_of(run)
    assert (refused(request, *args, words=words), request.status, request.answer) == (2, "pending", None)


def test_a_request_that_is_not_there_is_said():
    for given, words in (("nonsense", "not the id of a request"), (uuid4(), "There is no request")):
        with pytest.raises(CommandError, match=words):
            call_command("ravi_answer", str(given), "deny")


def lines(*frames):
    written, noted = [], []
    transcript = Transcript(written.append, noted.append)
    for frame in frames:
        transcript.take(frame)
    return "".join(written), "".join(noted).splitlines()


def frame(**fields):
    return {
        "type": "request", "run": "r2", "agent": "test/leaf", "depth": 2, "id": "0192", "kind": "question",
        "text": "Which colour?", "choices": ["red", "blue"], "tool": "", "arguments": None,
        "context": "For the door.", "free_text": False, "questions": None, **fields,
    }  # fmt: skip


def test_a_question_is_shown_with_who_asks_and_how_to_answer():
    written, noted = lines(frame())
    assert written == ""
    assert noted == [
        "? [test/leaf] Which colour?", "  For the door.", "  one of: red | blue",
        '  manage.py ravi_answer 0192 answer "…"',
    ]  # fmt: skip

    # the end of a question is told once
    closed = {"type": "request.closed", "run": "r2", "agent": "test/leaf", "depth": 2, "id": "0192"}
    _, noted = lines(frame(), closed, closed)
    assert noted.count("[the question is closed]") == 1
    # escape sequences in a question do not reach the terminal
    _, noted = lines(frame(text="\x1b[31mred\x1b[0m?"))
    assert not any("\x1b" in line for line in noted)


def test_every_kind_says_how_to_answer_it():
    for fields, ways in [
        ({"kind": "uncertain", "arguments": {"amount": 3}}, ["--happened RESULT | --run-again | --fail"]),
        ({"kind": "approval"}, ["approve", 'deny --reason "…"', "edit --arguments JSON"]),
        ({"kind": "input", "questions": {"name": "Who?"}}, ["answer --value KEY=TEXT …"]),
    ]:
        with case(fields, ways):
            _, noted = lines(frame(**fields))
            assert [line for line in noted if "ravi_answer" in line] == [
                f"  manage.py ravi_answer 0192 {way}" for way in ways
            ]
    # an approval shows the call its risk and who is asked
    call = {"tool": "send_invoice", "arguments": {"customer": "ACME"}, "risk": "high", "to": "group:finance"}
    _, noted = lines(frame(kind="approval", text="Send it?", **call))
    assert noted[:2] == [
        "? [test/leaf] Send it?",
        '  send_invoice({"customer": "ACME"}) · risk high · asked: group:finance',
    ]
    # several questions are shown by their keys
    _, noted = lines(frame(kind="input", text="Two things", questions={"name": "Who?"}, choices=None))
    assert "  name: Who?" in noted
