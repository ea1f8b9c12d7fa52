"""What a terminal shows of a request to people."""

from ravi_django.management.transcript import Transcript
from tests.support.cases import case


def lines(*frames):
    written, noted = [], []
    transcript = Transcript(written.append, noted.append)
    for frame in frames:
        transcript.take(frame)
    return "".join(written), "".join(noted).splitlines()


def request(**fields):
    return {
        "type": "request", "run": "r2", "agent": "test/leaf", "depth": 2, "id": "0192", "kind": "question",
        "text": "Which colour?", "choices": ["red", "blue"], "tool": "", "arguments": None,
        "context": "For the door.", "free_text": False, "questions": None, **fields,
    }  # fmt: skip


def test_a_question_is_shown_with_who_asks_and_how_to_answer():
    written, noted = lines(request())
    assert written == ""
    assert noted == [
        "? [test/leaf] Which colour?",
        "  For the door.",
        "  one of: red | blue",
        '  manage.py ravi_answer 0192 answer "…"',
    ]


def test_every_kind_says_how_to_answer_it():
    for fields, ways in [
        ({"kind": "uncertain", "arguments": {"amount": 3}}, ["--happened RESULT | --run-again | --fail"]),
        ({"kind": "approval"}, ["approve", 'deny --reason "…"', "edit --arguments JSON"]),
        ({"kind": "input", "questions": {"name": "Who?"}}, ["answer --value KEY=TEXT …"]),
    ]:
        with case(fields, ways):
            _, noted = lines(request(**fields))
            assert [line for line in noted if "ravi_answer" in line] == [
                f"  manage.py ravi_answer 0192 {way}" for way in ways
            ]
    # an approval shows the call its risk and who is asked
    call = {"tool": "send_invoice", "arguments": {"customer": "ACME"}, "risk": "high", "to": "group:finance"}
    _, noted = lines(request(kind="approval", text="Send it?", **call))
    assert noted[:2] == [
        "? [test/leaf] Send it?",
        '  send_invoice({"customer": "ACME"}) · risk high · asked: group:finance',
    ]
    # several questions are shown by their keys
    _, noted = lines(request(kind="input", text="Two things", questions={"name": "Who?"}, choices=None))
    assert "  name: Who?" in noted


def test_the_end_of_a_question_is_told_once():
    closed = {"type": "request.closed", "run": "r2", "agent": "test/leaf", "depth": 2, "id": "0192"}
    _, noted = lines(request(), closed, closed)
    assert noted.count("[the question is closed]") == 1
    # escape sequences in a question do not reach the terminal
    _, noted = lines(request(text="\x1b[31mred\x1b[0m?"))
    assert not any("\x1b" in line for line in noted)
