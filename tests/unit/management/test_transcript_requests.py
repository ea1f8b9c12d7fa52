"""What a terminal shows of a request to people."""

from __future__ import annotations

import pytest

from ravi_django.management.transcript import Transcript


def lines(*frames):
    written, noted = [], []
    transcript = Transcript(written.append, noted.append)
    for frame in frames:
        transcript.take(frame)
    return "".join(written), "".join(noted).splitlines()


def request(**fields):
    return {
        "type": "request",
        "run": "r2",
        "agent": "test/leaf",
        "depth": 2,
        "id": "0192",
        "kind": "question",
        "text": "Which colour?",
        "choices": ["red", "blue"],
        "tool": "",
        "arguments": None,
        "context": "For the door.",
        "free_text": False,
        "questions": None,
        **fields,
    }


def test_a_question_is_shown_with_who_asks_and_how_to_answer():
    written, noted = lines(request())

    assert written == ""
    assert noted == [
        "? [test/leaf] Which colour?",
        "  For the door.",
        "  one of: red | blue",
        '  manage.py ravi_answer 0192 answer "…"',
    ]


@pytest.mark.parametrize(
    ("fields", "ways"),
    [
        (
            {"kind": "uncertain", "arguments": {"amount": 3}},
            ["--happened RESULT | --run-again | --fail"],
        ),
        ({"kind": "approval"}, ["approve", 'deny --reason "…"', "edit --arguments JSON"]),
        ({"kind": "input", "questions": {"name": "Who?"}}, ["answer --value KEY=TEXT …"]),
    ],
)
def test_every_kind_says_how_to_answer_it(fields, ways):
    _, noted = lines(request(**fields))

    assert [line for line in noted if "ravi_answer" in line] == [f"  manage.py ravi_answer 0192 {way}" for way in ways]


def test_an_approval_shows_the_call_its_risk_and_who_is_asked():
    call = {"tool": "send_invoice", "arguments": {"customer": "ACME"}, "risk": "high", "to": "group:finance"}

    _, noted = lines(request(kind="approval", text="Send it?", **call))

    assert noted[:2] == [
        "? [test/leaf] Send it?",
        '  send_invoice({"customer": "ACME"}) · risk high · asked: group:finance',
    ]


def test_several_questions_are_shown_by_their_keys():
    _, noted = lines(request(kind="input", text="Two things", questions={"name": "Who?"}, choices=None))

    assert "  name: Who?" in noted


def test_the_end_of_a_question_is_told_once():
    closed = {"type": "request.closed", "run": "r2", "agent": "test/leaf", "depth": 2, "id": "0192"}

    _, noted = lines(request(), closed, closed)

    assert noted.count("[the question is closed]") == 1


def test_escape_sequences_in_a_question_do_not_reach_the_terminal():
    _, noted = lines(request(text="\x1b[31mred\x1b[0m?"))

    assert not any("\x1b" in line for line in noted)
