"""What the model server is told, and what becomes of what it says: the real litellm in a real worker."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.support.model_server import said
from tests.support.openai_server import Body, Reply, Script, steps_script
from tests.support.site_process import Site, Worker


def told(body: Body) -> list[tuple[str, str]]:
    return [(message["role"], said(message)) for message in body["messages"] if message["role"] != "system"]


def failing_first(times: int, at_call: int, then: Script) -> Script:
    """429 for the first `times` requests of one call."""
    asked = count()

    def script(body: Body) -> Reply:
        calls = sum(message["role"] == "assistant" for message in body["messages"]) + 1
        if calls == at_call and next(asked) < times:
            headers = {"retry-after": "0.05"}
            return Reply(status=429, text="slow down, please", error_type="rate_limit_error", headers=headers)
        return then(body)

    return script


@pytest.mark.full
def test_a_session_remembers_itself_and_no_other(site: Site, worker: Worker) -> None:
    first = site.model.conversation("my name is Ada", script=lambda body: Reply(text="Hello Ada."))
    other = site.model.conversation("my name is Bob", script=lambda body: Reply(text="Hello Bob."))
    second = site.model.conversation("what is my name", script=lambda body: Reply(text="It is Ada."))
    third = site.model.conversation("and mine", script=lambda body: Reply(text="It is Bob."))

    ours = site.client.ask("submit", agent="react/assistant", text=first.text)
    theirs = site.client.ask("submit", agent="react/assistant", text=other.text)
    for run in (ours, theirs):
        site.completed(run["id"])
    site.completed(site.submit(second, ours["session"]))
    site.completed(site.submit(third, theirs["session"]))

    assert [told(body) for body in first.requests] == [[("user", first.text)]]
    assert [told(body) for body in second.requests] == [
        [("user", first.text), ("assistant", "Hello Ada."), ("user", second.text)]
    ]
    assert [told(body) for body in third.requests] == [
        [("user", other.text), ("assistant", "Hello Bob."), ("user", third.text)]
    ]


def test_two_messages_at_once_are_answered_one_after_the_other(site: Site, worker: Worker) -> None:
    first = site.model.conversation("first", steps=1, hold={1})
    second = site.model.conversation("second", steps=1)

    run = site.client.ask("submit", agent="react/assistant", text=first.text)
    first.wait_held(1)
    waiting = site.submit(second, run["session"])
    assert site.run(waiting)["status"] == "queued"
    first.release()
    site.completed(run["id"])
    site.completed(waiting)

    assert [role for role, _ in told(second.requests[0])] == ["user", "assistant", "tool", "assistant", "user"]


def test_tools_go_out_and_their_results_come_back(site: Site, worker: Worker) -> None:
    def script(body: Body) -> Reply:
        results = [message for message in body["messages"] if message["role"] == "tool"]
        if results:
            return Reply(text=f"It is {said(results[-1])}.")
        return Reply(tool_calls=(("calculator", {"expression": "12 * 7"}),), call_ids=("call_of_the_model",))

    about = site.model.conversation("what is 12 * 7", script=script)
    run_id = site.submit(about)
    run = site.completed(run_id)

    assert run["output"] == "It is 84."
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in about.requests[0]["tools"]}
    assert set(offered) == {"calculator", "current_time", "send_invoice", "send_mail"}
    assert offered["calculator"]["required"] == ["expression"]
    call, result = about.requests[1]["messages"][-2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "call_of_the_model"
    assert said(result) == "84"
    assert (run["input_tokens"] > 0, run["output_tokens"] > 0) == (True, True)
    text = "".join(frame["text"] for frame in site.wait_streamed(run_id) if frame["type"] == "text.delta")
    assert text == run["output"]


def test_a_rate_limit_is_waited_out(site: Site, worker: Worker) -> None:
    about = site.model.conversation("limited", script=failing_first(2, 3, steps_script(3)))
    run_id = site.submit(about)
    run = site.completed(run_id)

    retried: list[dict[str, Any]] = [row for row in site.journal(run_id) if row["kind"] == "run.retried"]
    assert [row["error"] for row in retried] == [{"type": "RateLimitError", "message": "slow down, please"}] * 2
    assert [row["result"]["attempt"] for row in retried] == [1, 2]
    assert about.calls() == [1, 2, 3, 3, 3, 4]
    assert (run["attempts"], run["crashes"], run["error"]) == (0, 0, None)
