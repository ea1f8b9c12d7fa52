"""Real conversations with a running site, as a program would have them: HTTP, a ticket, a websocket. One with the
assistant, one with the team, one over an invoice that staff approve, and one over a mail that the user
confirms. Then an item is published at the feed server (FEED_SERVER_URL), and two users' readers have to make something
of it, each what is theirs.

    python -m project.demo_check http://127.0.0.1:8000 [--any-answer]

`--any-answer` is for a model too small to calculate: it has to stream some words, and the team is left out.
Prints questions and answers; exits 1 and says why when anything is not as CONTRACT promises.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from http.cookiejar import CookieJar
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from project.feed_server import publish

USER, APPROVER, ADMIN = "demo", "staff", "admin"  # whose passwords are their names
ASSISTANT, TEAM = "react/assistant", "orchestrator/team"
QUESTION, ANSWER = "What is 12 * (3 + 4)?", "84"
TEAMWORK = "Calculate 12 * (3 + 4), and write a note about it."
INVOICE = "Send an invoice of 100 to ACME"
MAIL = "Send a mail to ada@example.com: See you at noon."
SMALL_TALK = "What is the capital of France?"
READERS = ("demo", "ada")
TOPIC, HEADLINE, NEWS = "science", "A telescope on a hill", "It was carried up by mules. Rain was expected."
SOURCES = "/admin/ravi/source/"
FRAME_TIMEOUT_S = 30.0
NEWS_S = 60.0  # on a busy machine; a quiet one takes about a second
THINKING_S = 100.0  # of a real model on a busy machine


_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a proxy to our own machine


class CheckFailed(Exception):
    pass


def health(address: str) -> bool:
    """Database, broker, channel layer, worker and sweep: all there."""
    try:
        with _HTTP.open(f"{address}/ravi/health/", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def call(
    address: str, method: str, path: str, body: dict[str, Any] | None = None, *, user: str = USER, refused: int = 0
) -> dict[str, Any]:
    """What the site answers; with `refused` it has to be a refusal of that status."""
    credentials = b64encode(f"{user}:{user}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310
        f"{address}/ravi/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Basic {credentials}", "Content-Type": "application/json"},
    )
    try:
        with _HTTP.open(request, timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        if refused == error.code:
            return {}
        raise CheckFailed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:500]}") from error
    except OSError as error:
        raise CheckFailed(f"{method} {path}: {error}") from error
    expect(not refused, f"{method} {path} is allowed to {user}, and should be refused with {refused}")
    return answer


def follow(
    address: str,
    run: str,
    ticket: str,
    *,
    patience: float = FRAME_TIMEOUT_S,
    on_frame: Callable[[dict[str, Any]], None] = lambda frame: None,
) -> list[dict[str, Any]]:
    """Every frame of the run's tree, up to and with `stream.done`; `patience` is in seconds, for the next one."""
    url = f"{address.replace('http', 'ws', 1)}/ws/ravi/runs/{run}/?ticket={ticket}&after=0"
    frames: list[dict[str, Any]] = []
    try:
        with connect(url, open_timeout=10, proxy=None) as socket:
            while not frames or frames[-1]["type"] != "stream.done":
                frames.append(json.loads(socket.recv(timeout=patience)))
                on_frame(frames[-1])
    except (OSError, WebSocketException) as error:
        raise CheckFailed(f"websocket after {len(frames)} frames: {error!r}") from error
    return frames


def converse(address: str, question: str = QUESTION) -> str:
    """Ask the demo agent; the answer's text. The sum has to be right, and the calculator's. Raises CheckFailed."""
    patience = FRAME_TIMEOUT_S if question == QUESTION else THINKING_S
    run, frames = followed(address, ASSISTANT, question, patience)
    if question != QUESTION:
        return answered(address, run["id"])
    steps = [json.dumps(frame) for frame in frames if frame["type"] == "progress" and frame["step"] == "tool_call"]
    expect(any("calculator" in step for step in steps), "the calculator was not called")
    output = answered(address, run["id"])
    expect(ANSWER in output, f"{ANSWER} is not in the answer: {output!r}")
    return output


def work_as_a_team(address: str) -> str:
    """Give the demo's team a task; the answer's text. Somebody has to have been asked. Raises CheckFailed."""
    run, frames = followed(address, TEAM, TEAMWORK)
    asked = {frame["agent"] for frame in frames if frame["parent"] == run["id"]}
    expect(bool(asked), "the team's leader has asked nobody")
    output = answered(address, run["id"])
    tree = call(address, "GET", f"runs/{run['id']}/tree/")
    expect({child["status"] for child in tree["children"]} == {"completed"}, f"not all of the team is done: {tree}")
    return output


def be_approved(address: str, text: str, tool: str, by: str) -> str:
    """Have something sent that has to be approved first, and by nobody but `by`; the answer's text. Raises
    CheckFailed."""
    run = call(address, "POST", "runs/", {"agent": ASSISTANT, "input": text})
    ticket = call(address, "POST", "tickets/", {})["ticket"]
    asked: list[dict[str, Any]] = []

    def approve(frame: dict[str, Any]) -> None:
        if frame["type"] != "request":
            return
        listed = call(address, "GET", f"requests/?status=pending&run={run['id']}")["results"]
        expect([row["id"] for row in listed] == [frame["id"]], f"the inbox does not have the request: {listed}")
        asked.extend(listed)
        answer = f"requests/{frame['id']}/answer/"
        if by != USER:
            call(address, "POST", answer, {"action": "approve"}, refused=403)
        call(address, "POST", answer, {"action": "approve"}, user=by)
        call(address, "POST", answer, {"action": "deny"}, user=by, refused=409)

    frames = follow(address, run["id"], ticket, on_frame=approve)
    expect(bool(asked), f"nobody was asked to approve {tool}")
    expect(any(frame["type"] == "request.closed" for frame in frames), "the request was not closed")
    journal = call(address, "GET", f"runs/{run['id']}/journal/?limit=200")["results"]
    sent = [row for row in journal if row["kind"] == "tool.call" and row["name"] == tool and row["result"]]
    expect(len(sent) == 1, f"{tool} was called {len(sent)} times, not once")
    output = answered(address, run["id"])
    expect("is done" in output, f"the answer does not say that it is sent: {output!r}")
    return output


def read_the_news(address: str, feed_server: str) -> list[str]:
    """Publish an item; a line for each user, of what their reader made of it. No two may be the same. Raises
    CheckFailed."""
    title = f"{HEADLINE} ({time.time_ns()})"
    browsers = {user: logged_in(address, user) for user in READERS}
    staff = logged_in(address, ADMIN, SOURCES)
    began = time.monotonic()
    publish(feed_server, TOPIC, title, NEWS)
    poll_now(address, staff)
    found: dict[str, dict[str, Any]] = {}
    patience = began + NEWS_S
    while len(found) < len(READERS):
        expect(time.monotonic() < patience, f"after {NEWS_S:.0f} s {title!r} has come to {list(found)} alone")
        time.sleep(0.2)
        for user, browser in browsers.items():
            with browser.open(f"{address}/feed/items/", timeout=10) as answer:
                items = json.load(answer)["items"]
            mine = [item for item in items if item["title"] == title]
            found.update({user: mine[0]} if mine else {})
    verdicts = {user: ("kept" if item["kept"] else "passed over", item["reason"]) for user, item in found.items()}
    expect(len(set(verdicts.values())) == len(READERS), f"their readers say the same: {verdicts}")
    took = f"published at the feed server, and read by both {time.monotonic() - began:.1f} s later"
    lines = [f"{user}'s reader: {title}: {what}, {reason}" for user, (what, reason) in sorted(verdicts.items())]
    return [*lines, took]


def poll_now(address: str, staff: urllib.request.OpenerDirector) -> None:
    """As staff do in the admin: what has just been published is not waited for until the source is due."""
    page = f"{address}{SOURCES}?q=Demo+{TOPIC}"
    with staff.open(page, timeout=10) as answer:
        listed = answer.read().decode()
    rows = re.findall(r'name="_selected_action" value="([^"]+)"', listed)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', listed)
    expect(len(rows) == 1 and token is not None, f"the admin lists {len(rows)} sources of {TOPIC}, not one")
    form = {"csrfmiddlewaretoken": token and token[1], "action": "poll_now", "_selected_action": rows[0]}
    staff.open(page, urllib.parse.urlencode(form).encode(), timeout=10).close()


def logged_in(address: str, user: str, path: str = "/feed/") -> urllib.request.OpenerDirector:
    """A browser, as far as cookies go, in which `user` is on the page of `path`."""
    cookies = CookieJar()
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(cookies))
    login = f"{address}/accounts/login/"
    browser.open(login, timeout=10).close()
    token = next((cookie.value or "" for cookie in cookies if cookie.name == "csrftoken"), "")
    form = {"username": user, "password": user, "csrfmiddlewaretoken": token, "next": path}
    with browser.open(login, urllib.parse.urlencode(form).encode(), timeout=10) as page:
        expect(page.url == f"{address}{path}", f"{user} cannot log in to {path}, and is at {page.url}")
    return browser


def followed(
    address: str, agent: str, text: str, patience: float = FRAME_TIMEOUT_S
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run, and all frames of its tree."""
    run = call(address, "POST", "runs/", {"agent": agent, "input": text})
    ticket = call(address, "POST", "tickets/", {})["ticket"]
    frames = follow(address, run["id"], ticket, patience=patience)
    seqs = [frame["seq"] for frame in frames]
    expect(seqs == sorted(set(seqs)), f"seq does not rise: {seqs}")
    expect(any(frame["type"] == "text.delta" for frame in frames), "no text was streamed")
    return run, frames


def answered(address: str, run_id: str) -> str:
    run = call(address, "GET", f"runs/{run_id}/")
    expect(run["status"] == "completed", f"the run is {run['status']}: {run['error']}")
    expect(bool(run["output"]), "the answer is empty")
    return str(run["output"])


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise CheckFailed(otherwise)


def main() -> int:
    question = SMALL_TALK if "--any-answer" in sys.argv else QUESTION
    print(f"{USER}: {question}")
    try:
        print(f"{ASSISTANT}: {converse(sys.argv[1], question)}")
        if question == QUESTION:
            print(f"{USER}: {TEAMWORK}")
            print(f"{TEAM}: {work_as_a_team(sys.argv[1])}")
            for text, tool, by in ((INVOICE, "send_invoice", APPROVER), (MAIL, "send_mail", USER)):
                print(f"{USER}: {text}")
                print(f"{ASSISTANT}: {be_approved(sys.argv[1], text, tool, by)} (approved by {by})")
            if feed_server := os.environ.get("FEED_SERVER_URL"):
                print("\n".join(read_the_news(sys.argv[1], feed_server)))
    except (CheckFailed, OSError) as error:
        print(f"check: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
