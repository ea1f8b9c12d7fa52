"""What has to be true once everything is quiet: of one run's rows, of the ledger, and of both together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.acceptance.crash.lab import Lab
from tests.acceptance.crash.lab_app.ledger import ACKNOWLEDGED
from tests.acceptance.crash.memory_checks import of_memory
from tests.acceptance.crash.people_checks import is_proxy, of_people
from tests.acceptance.crash.person import VOTES
from tests.acceptance.crash.story import INPUT, NOT_RUN, OUTPUT, Step, Story
from tests.acceptance.crash.tree_checks import of_tree
from tests.support.columns import as_written

TERMINAL = ("completed", "failed", "cancelled")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    run: str
    wrong: str

    def __str__(self) -> str:
        return f"run {self.run}: {self.wrong}"


class Evidence:
    """Everything that is known of the runs, read once: of all of them, or of one tree."""

    def __init__(self, lab: Lab, tree: str | None = None) -> None:
        mine = "" if tree is None else "WHERE %s IN (id, root_id)"
        given = () if tree is None else (tree,)
        self.runs: list[Row] = lab.query(f"SELECT * FROM ravi_run {mine} ORDER BY id", *given)

        def rows(table: str, order: str, run: str = "run_id") -> dict[str, list[Row]]:
            found: dict[str, list[Row]] = {}
            for row in lab.query(
                f"SELECT * FROM {table} WHERE {run} IN (SELECT id FROM ravi_run {mine}) ORDER BY {order}", *given
            ):
                found.setdefault(str(row[run]), []).append(row)
            return found

        journals = rows("ravi_journalentry", "seq")
        self.journal = {run: [as_written(row) for row in journal] for run, journal in journals.items()}
        self._not_run: dict[str, set[int]] = {}
        for run in self.runs:
            numbers = self._not_run.setdefault(str(run["root_id"] or run["id"]), set())
            for row in self.journal.get(str(run["id"]), []):
                if row["kind"] == "tool.call" and _said(row) == f"{row['name']} {NOT_RUN}":
                    numbers.add(row["request"]["arguments"]["number"])
        self.turns = rows("ravi_turn", "position")
        self.sessions = {str(row["id"]): row for row in lab.query("SELECT * FROM ravi_session")}
        self.rows = rows("lab_row", "id", "run")
        self.inbox = rows("ravi_inboxmessage", "id")
        self.signals = rows("ravi_signal", "id")
        self.asks = rows("ravi_ask", "id", "asker_id")
        self.requests = rows("ravi_humanrequest", "id")
        self.records = self._by_request("ravi_auditrecord", lab)
        self.votes: dict[str, list[Row]] = {}
        for vote in lab.ledger(VOTES):
            self.votes.setdefault(vote["request"], []).append(vote)
        self.reservations = rows("ravi_reservation", "id")
        self.accounts = {row["key"]: row for row in lab.query("SELECT * FROM ravi_budgetaccount")}
        self.plans = {root: plan for root, plan in lab.plans.items() if tree in (None, root)}
        self.ledger: dict[str, list[Row]] = {}
        for line in lab.ledger():
            self.ledger.setdefault(line["run"], []).append(line)
        self.acknowledged: dict[str, set[str]] = {}
        for line in lab.ledger(ACKNOWLEDGED):
            self.acknowledged.setdefault(line["run"], set()).update(line["rows"])
        self.submitted = set(lab.stories) if tree is None else {tree}
        self.stories = dict(lab.stories)
        self.cancelled: set[str] = set()  # roots that somebody has cancelled

    @staticmethod
    def _by_request(table: str, lab: Lab) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in lab.query(f"SELECT * FROM {table} WHERE event = 'request' ORDER BY id"):
            found.setdefault(row["detail"]["request"], []).append(row)
        return found

    def story(self, run_id: str) -> Story:
        """A child's is in its inbox."""
        if run_id not in self.stories:
            self.stories[run_id] = story_of(self.inbox.get(run_id, []))
        return self.stories[run_id]

    def violations(self) -> list[Violation]:
        found = [Violation(lost, "was submitted and is not there") for lost in self._lost()]
        live = {str(run["id"]): run for run in self.runs}
        for run in self.runs:
            found += [Violation(str(run["id"]), wrong) for wrong in self._of_run(run, live)]
        found += [Violation(run_id, wrong) for run_id, wrong in of_memory(self)]
        for root, plan in self.plans.items():
            found += [Violation(root, wrong) for wrong in of_tree(self, root, plan)]
        return found

    def not_run(self, run: Row) -> set[int]:
        """The numbers of the calls in its tree that a worker did not make, because it could not renew the lease."""
        return self._not_run.get(str(run["root_id"] or run["id"]), set())

    def asked_for(self, run_id: str) -> str | None:
        """A run's input; None while it has no message yet."""
        return _text(self.inbox.get(run_id, []))

    def account(self, run_id: str) -> Iterator[str]:
        """What is known of a run, a line a row: its journal, then its lines of the ledger."""
        yield f"run {run_id}:"
        for row in self.journal.get(run_id, []):
            request = row["request"] if row["kind"] == "tool.call" else ""
            what = f"{row['kind']} {row['name']} {row['phase']} at {row['path']} {request} {row['error'] or ''}"
            yield f"  {row['seq']} epoch {row['epoch']} {row['finished_at']:%M:%S.%f} {what}"
        for line in self.ledger.get(run_id, []):
            yield f"  ledger: {line}"

    def _lost(self) -> list[str]:
        return sorted(self.submitted - {str(run["id"]) for run in self.runs})

    def _of_run(self, run: Row, runs: dict[str, Row]) -> Iterator[str]:
        run_id = str(run["id"])
        parent = runs.get(str(run["parent_id"]))
        yield from _numbering(run, self.journal.get(run_id, []))
        known = {f"{row['seq']} {row['path']}" for row in self.journal.get(run_id, [])}
        if lost := self.acknowledged.get(run_id, set()) - known:
            yield f"rows that its worker took for recorded are missing: {sorted(lost)}"
        # What a parent leaves behind is cancelled with its end.
        is_left = run["status"] == "cancelled" and parent is not None and parent["status"] in TERMINAL
        is_cancelled = run["status"] in TERMINAL and str(run["root_id"] or run["id"]) in self.cancelled
        if not (is_left or is_cancelled):
            yield from _ending(run, self.story(run_id), self.not_run(run))
        ledger, rows = self.ledger.get(run_id, []), self.rows.get(run_id, [])
        yield from _effects(self.story(run_id), ledger, rows, run, self.not_run(run))
        yield from of_people(self, run, self.story(run_id))
        yield from _paid_once(self.journal.get(run_id, []), ledger, self.story(run_id))
        if run["status"] == "completed":
            yield from _answered(self.turns.get(run_id, []), self.journal.get(run_id, []), self.story(run_id))
            for signal in self.signals.get(run_id, []):
                if signal["consumed_at"] is None:
                    yield f"completed without having read the signal {signal['name']!r}"
            if not is_proxy(run):
                yield from _counted(run, self.journal.get(run_id, []), self.story(run_id))
            if still := [ask["path"] for ask in self.asks.get(run_id, []) if ask["outcome"] is None]:
                yield f"completed without the outcome of what it asked at {still}"
        if run["status"] in TERMINAL:
            yield from _left(self.requests.get(run_id, []))
        if parent is not None and run["status"] not in TERMINAL and parent["status"] in TERMINAL:
            yield f"is an orphan: it is {run['status']}, its parent {parent['id']} {parent['status']}"


def story_of(inbox: list[Row]) -> Story:
    """What a child was given to do; nothing while it has no message yet."""
    text = _text(inbox)
    return Story.of() if text is None or not text.startswith("{") else Story.read(text)


def _said(call: Row) -> str:
    return "".join(block.get("text", "") for block in (call["result"] or {}).get("content", []))


def _text(inbox: list[Row]) -> str | None:
    if not inbox:
        return None
    content = inbox[0]["body"]["payload"]["message"]["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def _numbering(run: Row, journal: list[Row]) -> Iterator[str]:
    seqs = [row["seq"] for row in journal]
    if seqs != list(range(1, run["next_seq"])):
        yield f"its journal has the numbers {seqs}, and {run['next_seq']} comes next"
    epochs = [row["epoch"] for row in journal]
    if epochs != sorted(epochs):
        yield f"a lease wrote after a later one had begun to: {epochs}"


def _ending(run: Row, story: Story, not_run: set[int]) -> Iterator[str]:
    if is_proxy(run) and run["status"] == "completed":
        return
    if run["status"] != "completed":
        yield f"is {run['status']}, waits on {run['waiting_on']}: {run['error']}"
    elif run["output"] != (answer := story.answer(not_run)):
        yield f"answered {run['output']!r}, not {answer!r}"


def _effects(story: Story, ledger: list[Row], rows: list[Row], run: Row, not_run: set[int]) -> Iterator[str]:
    """How often each effect happened, by the world's own account."""
    written = Counter(row["number"] for row in rows)
    keys: dict[int, set[str]] = {}
    times: Counter[int] = Counter()
    for line in ledger:
        if line["kind"] != "model":
            keys.setdefault(line["number"], set()).add(line["key"])
            times[line["number"]] += 1
    completed = run["status"] == "completed"
    for step in story.steps():
        if step.effect is not None:
            wanted = completed and step.number not in not_run
            yield from _effect(step, times[step.number], written[step.number], keys, wanted)
    if done := not_run & (set(times) | set(written)):
        yield f"did what it said was not run: {sorted(done)}"
    if unknown := (set(times) | set(written)) - {step.number for step in story.steps()}:
        yield f"did what nobody asked for: {sorted(unknown)}"
    if len(set().union(*keys.values())) != sum(map(len, keys.values())):
        yield "two effects share an idempotency key"


def _effect(step: Step, times: int, written: int, keys: dict[int, set[str]], wanted: bool) -> Iterator[str]:
    match step.effect:
        case "at_most_once" if times > 1 or (wanted and times != 1):
            yield f"{step.said()} happened {times} times"
        case "idempotent" if wanted and not times:
            yield f"{step.said()} did not happen"
        case "transactional" if written > 1 or (wanted and written != 1):
            yield f"{step.said()} left {written} rows"
    if len(keys.get(step.number, ())) > 1:
        yield f"{step.said()} happened under several keys"


def _paid_once(journal: list[Row], ledger: list[Row], story: Story) -> Iterator[str]:
    """Nothing that is recorded was done by a later lease, and no lease did anything twice."""
    calls = [row["epoch"] for row in journal if row["kind"] == "llm.call"]
    recorded = {("model", number): epoch for number, epoch in enumerate(calls)}
    for row in journal:
        if row["kind"] == "tool.call" and row["phase"] == "result":
            recorded[row["name"], row["request"]["arguments"]["number"]] = row["epoch"]
    before = 0 if story.heir is None else len(story.turns)  # the calls of the agent that handed over
    done = Counter(
        (line["kind"], line["number"] + (before if line.get("agent") == "heir" else 0), line["epoch"])
        for line in ledger
    )
    for (kind, number, epoch), times in done.items():
        known = recorded.get((kind, number))
        if known is not None and epoch > known:
            yield f"{kind} {number} was recorded under epoch {known} and done again under {epoch}"
        if times > 1:
            yield f"{kind} {number} was done {times} times under epoch {epoch}"


def _answered(turns: list[Row], journal: list[Row], story: Story) -> Iterator[str]:
    asked: list[str] = []
    answered: list[str] = []
    rows = {row["seq"]: row for row in journal}
    for turn in turns:
        row = rows[turn["entry_seq"]] if turn["entry_seq"] else None  # that holds the turn's content
        if row is not None and row["kind"] == "tool.call":
            answered.append(row["request"]["call_id"])
            continue
        for block in turn["content"] if row is None else row["result"]["content"]:
            if block["type"] == "tool_use":
                asked.append(block["call_id"])
            elif block["type"] == "tool_result":
                answered.append(block["call_id"])
    if sorted(asked) != sorted(answered):
        yield f"its history asks for the tool calls {asked} and answers {answered}"
    wanted = sorted(f"c{step.number}" for turn in story.all_turns() for step in turn)
    if turns and sorted(asked) != wanted:
        yield f"its history asks for the tool calls {asked}, its story for {wanted}"


def _counted(run: Row, journal: list[Row], story: Story) -> Iterator[str]:
    """Every model call is recorded once, with what it used, and the run has the sum, with requests that were lost."""
    calls = [row for row in journal if row["kind"] == "llm.call"]
    if len(calls) != story.calls:
        yield f"made {len(calls)} model calls, not {story.calls}"
    lost = [row for row in journal if row["kind"] == "llm.paid"]
    read = INPUT * len(calls) + sum(row["input_tokens"] for row in lost)
    wrote = OUTPUT * len(calls) + sum(row["output_tokens"] for row in lost)
    if (run["input_tokens"], run["output_tokens"]) != (read, wrote):
        yield f"counts {run['input_tokens']} + {run['output_tokens']} tokens for {len(calls)} calls, {len(lost)} lost"


def _left(requests: list[Row]) -> Iterator[str]:
    if still := [str(request["id"]) for request in requests if request["status"] == "pending"]:
        yield f"has ended, and people are still asked: {still}"
