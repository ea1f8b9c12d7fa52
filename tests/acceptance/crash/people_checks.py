"""What has to be true of the requests to people once everything is quiet: who was asked, who answered, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.acceptance.crash.story import Story
from tests.acceptance.crash.wishes import CHIEFS, GATED, PEOPLE, PEOPLES, PROXY, RUNS

if TYPE_CHECKING:
    from tests.acceptance.crash.checks import Evidence, Row

ENDS = ("answered", "expired", "cancelled")  # of an audited request: each has one of these, once


def of_people(evidence: Evidence, run: Row, story: Story) -> Iterator[str]:
    run_id = str(run["id"])
    requests = evidence.requests.get(run_id, [])
    yield from _approved(story, requests, evidence.ledger.get(run_id, []), evidence.rows.get(run_id, []))
    for request in requests:
        yield from _counted(request, evidence.records.get(str(request["id"]), []))
        yield from _votes(request, evidence.votes.get(str(request["id"]), []))
    if run["status"] == "completed" and not is_proxy(run):
        yield from _asked(story, requests)


def is_proxy(run: Row) -> bool:
    """Whether it asks a person in another run's place; its input is the question, and no story."""
    return bool(run["agent"].startswith("user_proxy/"))


def _approved(story: Story, requests: list[Row], ledger: list[Row], rows: list[Row]) -> Iterator[str]:
    """Nothing behind an approval happened without one, and nothing that was refused happened at all."""
    allowed = {
        request["arguments"]["number"]
        for request in requests
        if request["kind"] == "approval" and (request["answer"] or {}).get("action") in ("approve", "edit")
    }
    happened = {line["number"] for line in ledger if line["kind"] in GATED} | {row["number"] for row in rows}
    for step in story.steps():
        if step.tool in GATED and step.number in happened:
            if step.number not in allowed:
                yield f"{step.tool} {step.number} happened, and nobody had approved it"
            if step.wish not in RUNS:
                yield f"{step.tool} {step.number} happened, and the wish was to {step.wish}"


def _counted(request: Row, records: list[Row]) -> Iterator[str]:
    """One record of its opening, and of each time that a retry of its run has opened it again; one of each end."""
    names = Counter(record["name"] for record in records)
    ends = sum(names[name] for name in ENDS)
    still = 1 if request["status"] == "pending" else 0
    if names["opened"] != ends + still or not names["opened"]:
        yield f"request {request['id']} is {request['status']}; the audit log says {dict(names)}"
    if (request["status"] == "answered") != (request["answer"] is not None):
        yield f"request {request['id']} is {request['status']} and its answer {request['answer']}"


def _votes(request: Row, votes: list[Row]) -> Iterator[str]:
    """At most one person was told that theirs counts, and that one's does."""
    winners = [vote["by"] for vote in votes if vote["kind"] == "answered"]
    if len(winners) > 1:
        yield f"request {request['id']} was answered by {winners}"
    if winners and (request["answer"] or {}).get("by") != winners[0]:
        yield f"request {request['id']}: {winners[0]} was told that theirs counts; it says {request['answer']}"
    by = (request["answer"] or {}).get("by")
    if by and request["level"] and PEOPLE.get(by) != CHIEFS:
        yield f"request {request['id']} was put to the {CHIEFS}, and {by} answered it"


def _asked(story: Story, requests: list[Row]) -> Iterator[str]:
    """A request for each call that waits for a person."""
    wanted = sorted(step.number for step in story.steps() if step.tool in PEOPLES and step.tool != PROXY)
    found = sorted(
        int(request["text"].split()[-1]) if request["kind"] == "question" else request["arguments"]["number"]
        for request in requests
        if request["kind"] in ("question", "approval")
    )
    if found != wanted:
        yield f"people were asked about the calls {found}, not {wanted}"
