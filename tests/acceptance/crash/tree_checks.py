"""What has to be true of a planned tree once everything is quiet: its shape, its asks, its slots and its budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.acceptance.crash.plan import Plan, agent_of, parents, story_at
from tests.acceptance.crash.story import INPUT, OUTPUT, place_of

if TYPE_CHECKING:
    from tests.acceptance.crash.checks import Evidence, Row


def of_tree(evidence: Evidence, root: str, plan: Plan) -> Iterator[str]:
    """Of the tree as a whole; `checks` looks at each of its runs."""
    runs = [run for run in evidence.runs if root in (str(run["id"]), str(run["root_id"]))]
    places = {str(run["id"]): place_of(evidence.asked_for(str(run["id"])) or "{}") for run in runs}
    yield from _shape(plan, runs, places)
    for run in runs:
        yield from _asks(plan, evidence.asks.get(str(run["id"]), []), places, evidence.not_run(run))
    yield from _budget(evidence, root, plan, runs)


def _shape(plan: Plan, runs: list[Row], places: dict[str, int | None]) -> Iterator[str]:
    """Every planned run is there once, below the right one."""
    times = Counter(places.values())
    for number in range(plan.runs):
        if times[number] != 1:
            yield f"run {number} of the tree was made {times[number]} times"
    if unplanned := times.keys() - set(range(plan.runs)):
        yield f"has runs that nobody asked for: {sorted(map(str, unplanned))}"
    for run in runs:
        number = places[str(run["id"])]
        if number is None or not 0 <= number < plan.runs:
            continue
        above = -1 if run["parent_id"] is None else places.get(str(run["parent_id"]))
        if above != parents(plan)[number]:
            yield f"run {number} is below run {above}, not {parents(plan)[number]}"
        if run["depth"] != _depth(plan, number):
            yield f"run {number} is at depth {run['depth']}, not {_depth(plan, number)}"
        if run["agent"] != agent_of(plan, number):
            yield f"run {number} is of {run['agent']}, not {agent_of(plan, number)}"
        if run["lease_owner"] or run["awaits_slot"]:
            yield f"run {number} still holds a lease, or awaits a slot"


def _depth(plan: Plan, number: int) -> int:
    return 0 if number == 0 else 1 + _depth(plan, parents(plan)[number])


def _asks(plan: Plan, asks: list[Row], places: dict[str, int | None], not_run: set[int]) -> Iterator[str]:
    """Every run below another was asked once, by that one, and its own answer is the outcome."""
    for ask in asks:
        number, asker = places.get(str(ask["target_id"])), places.get(str(ask["asker_id"]))
        if number is None or asker != parents(plan)[number]:
            yield f"run {asker} asked run {number}"
            continue
        wanted = story_at(plan.seed, plan.runs, plan.depth, number).answer(not_run)
        said = ask["result"]["text"] if isinstance(ask["result"], dict) and "text" in ask["result"] else ask["result"]
        if ask["outcome"] != "replied" or said != wanted:
            yield f"the ask of run {number} came to {ask['outcome']}: {said!r}, not {wanted!r}"
    for target, times in Counter(str(ask["target_id"]) for ask in asks).items():
        if times > 1:
            yield f"run {places.get(target)} was asked {times} times"


def _budget(evidence: Evidence, root: str, plan: Plan, runs: list[Row]) -> Iterator[str]:
    """To the token: the plan with the lost requests, the journals, the runs' sums and the account say the same, and
    nothing is reserved."""
    journal: Counter[str] = Counter()
    for run in runs:
        for row in evidence.journal.get(str(run["id"]), []):
            tokens = (row["input_tokens"] or 0) + (row["output_tokens"] or 0)
            journal["tokens"] += tokens
            journal["calls"] += row["kind"] in ("llm.call", "llm.paid")
            journal["lost"] += row["kind"] == "llm.paid"
            journal["lost tokens"] += tokens if row["kind"] == "llm.paid" else 0
    calls = plan.tokens // (INPUT + OUTPUT) + journal["lost"]
    wanted = plan.tokens + journal["lost tokens"]
    sums = {
        "the journals": journal["tokens"],
        "the runs": sum(run["input_tokens"] + run["output_tokens"] for run in runs),
    }
    account: dict[str, Any] | None = evidence.accounts.get(f"tree:{root}")
    if account is None:
        yield "has a budget, but no account"
    else:
        sums["the account"] = account["spent_tokens"]
        held = {name: account[name] for name in ("reserved_tokens", "reserved_cost", "reserved_turns") if account[name]}
        if held:
            yield f"has ended, and its account still holds {held}"
        if account["spent_turns"] != calls:
            yield f"made {calls} model calls; the account says {account['spent_turns']}"
    for whose, tokens in sums.items():
        if tokens != wanted:
            yield f"used {wanted} tokens; by {whose} it is {tokens}"
    if journal["calls"] != calls:
        yield f"made {calls} model calls; the journals have {journal['calls']}"
    if left := [row for run in runs for row in evidence.reservations.get(str(run["id"]), [])]:
        yield f"has ended with open reservations: {left}"
