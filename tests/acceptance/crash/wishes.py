"""What people say to the runs of a laboratory: every request of a run carries the wish that it is answered with.

So whoever checks a run knows from its story what it must have been told, and what it must never have done.
"""

from __future__ import annotations

from random import Random
from typing import Any

QUESTION = "ask_person"
PROXY = "ask_proxy"  # a run of a UserProxyAgent asks in its place
# Tools behind an approval, with the promise that each makes.
GATED = {
    "gated_idempotent": "idempotent",
    "gated_once": "at_most_once",
    "gated_transactional": "transactional",
    "gated_inside": "at_most_once",  # a middleware of `react/inside` asks
    "expiring": "at_most_once",  # nobody answers
    "escalating": "at_most_once",  # those who are asked first do not answer, the next ones do
}
PEOPLES = (QUESTION, PROXY, *GATED)  # tools whose calls wait for a person
VERDICTS = ("approve", "edit", "deny", "skip")
RUNS = ("approve", "edit", "escalate")  # the tool is called after these wishes and no other
AMOUNT, EDITED = 1, 2
CLERKS, CHIEFS = "clerks", "chiefs"  # groups
PEOPLE = {"ann": CLERKS, "bob": CLERKS, "cleo": CHIEFS}
EXPIRES_S, ESCALATES_S = 1.5, 1.0


def wish_for(tool: str, random: Random) -> str:
    match tool:
        case "expiring":
            return "expire"
        case "escalating":
            return "escalate"
        case _ if tool == PROXY:
            return "answer"
        case _ if tool == QUESTION:
            return random.choice(("answer", "answer", "skip"))
        case _:
            return random.choice(VERDICTS)


def said(tool: str, number: int, wish: str) -> str:
    """What the model is told of the call."""
    if tool == QUESTION:
        return f"{tool} {number}: answer yes {number}" if wish == "answer" else f"{tool} {number}: {wish}"
    if tool == PROXY:
        return f"{tool} {number}: yes {number}"
    if wish in RUNS:
        return done(tool, number, EDITED if wish == "edit" else AMOUNT)
    return f"no {number}" if wish == "deny" else "not done"


def done(tool: str, number: int, amount: int) -> str:
    return f"{tool} {number} x{amount}"


def heard(text: str) -> str:
    """A tool's result in the words of `said`: why a call was refused stands among other words."""
    if text.startswith("[a person"):  # the note on changed arguments goes before the result
        text = text.rpartition("]")[2]
    if text.startswith(PEOPLES):
        return text
    for word in ("denied", "skipped", "refused", "expired"):
        if word in text.lower():
            found = [part for part in text.replace(".", " ").replace(";", " ").split("no ")[1:] if part[:1].isdigit()]
            return f"no {found[0].split()[0]}" if found else "not done"
    return text


def answer_to(request: Any) -> dict[str, Any] | None:
    """What is answered to a HumanRequest, as `human.answer` takes it; None when nobody is to answer."""
    if request.kind == "question":
        wish, _, number = request.text.partition(" ")
        return {"action": "answer", "text": f"yes {number}"} if wish == "answer" else {"action": wish}
    if request.kind != "approval" or request.tool not in GATED:
        return None
    number, wish = request.arguments["number"], request.arguments["wish"]
    match wish:
        case "deny":
            return {"action": "deny", "reason": f"no {number}"}
        case "edit":
            return {"action": "edit", "arguments": {**request.arguments, "amount": EDITED}}
        case "escalate":
            return {"action": "approve"} if request.level else None
        case "expire":
            return None
        case _:
            return {"action": wish}
