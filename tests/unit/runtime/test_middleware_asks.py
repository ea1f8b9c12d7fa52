"""Function middlewares that ask people before the tool runs: asked once, answered once, and the tool runs once."""

import asyncio

import pytest

from ravi_django import answer, submit, tool
from ravi_django.agents import FunctionMiddleware
from ravi_django.kernel import HumanInput, PauseForInputResult, ToolUseBlock
from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.docs import Page
from tests.support.runs import asked, code, drive, every_death, make_run
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)

SKIPPED = "pay was not run: a middleware skipped it and gave no result"
EFFECTS = ["idempotent", "at_most_once", "transactional"]


class Gate(FunctionMiddleware):
    async def process(self, context, call_next):
        day = await context.ctx.pin("day", lambda: "monday")
        await context.ctx.log("gate", {"day": day, "at": context.ctx.now().isoformat()})
        if (await context.ctx.ask_human("May it?", ["yes", "no"]))["text"] == "yes":
            await call_next()


def paying(ran, effect="at_most_once", **options):
    def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    return tool(name="pay", effect=effect, **options)(pay)


def with_gates(tool, *gates):
    code(calling("pay"), tools=[tool]).middleware = list(gates)
    return drive(make_run())


@pytest.mark.sqlite
@pytest.mark.parametrize(("text", "told", "paid"), [("yes", "paid", ["paid"]), ("no", SKIPPED, [])])
def test_the_run_waits_for_the_person_and_the_answer_decides(ran, text, told, paid):
    call = ToolUseBlock(tool_name="pay", arguments={}, call_id="c")
    names = {"model": ScriptedModel([call, "done"]), "lookup": paying(ran)}
    exec(Page("middleware").code("a gate of your own"), names)
    run = submit("react/helper", "pay")
    run_until_idle()
    run.refresh_from_db()
    assert (asked(run).text, ran) == ("May it call pay?", [])
    rows = [row.path for row in journal_of(run) if row.path.startswith("turn1.call0")]
    assert rows == ["turn1.call0.1/m1"], "no started row of the tool"
    answer(asked(run).id, text=text)
    run_until_idle()

    assert (run.result(), ran, names["model"].calls[1].messages[-1].text) == ("done", paid, told)


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_worker_that_dies_anywhere_loses_no_answer_and_pays_once(clock, ran, effect):
    def story(drive):
        ran.clear()
        code(calling("pay"), tools=[paying(ran, effect)]).middleware = [Gate(), Gate()]
        run = drive(make_run())
        for _ in range(3):  # the two gates, and a person who knows of an uncertain payment
            if run.status == Status.SUSPENDED:
                clock.advance(3600)
                (request,) = HumanRequest.objects.filter(run=run, status="pending")
                paid = {"outcome": "happened", "result": "paid"} if ran else {"outcome": "run_again"}
                answer(request.id, **({"text": "yes"} if request.kind == "question" else {"action": "resolve", **paid}))
                run = drive(run)
        return run

    for run, death in every_death(clock, story):
        assert (run.status, run.output) == (Status.COMPLETED, "ok: paid"), run.error
        assert HumanRequest.objects.filter(kind="question").count() == 2
        assert len(ran) == 1 + (effect == "idempotent" and death.lost("tool.call"))
        assert JournalEntry.objects.filter(kind="log", path="1/m2").count() == 1


class Approve(FunctionMiddleware):
    async def process(self, context, call_next):
        if (await context.ctx.approve(context.tool.name, context.arguments, to="staff")).allows:
            await asyncio.sleep(0.1)  # no time of the tool's
            await call_next()


def test_a_middleware_may_have_the_only_call_of_a_tool_approved(ran, ann):
    run = with_gates(paying(ran, max_calls=1, timeout=0.05), Approve())
    assert (asked(run).kind, asked(run).path, asked(run).tool) == ("approval", "1/m1", "pay")
    answer(asked(run).id, action="approve", by=ann)
    assert (drive(run).output, ran) == ("ok: paid", ["paid"])
    (approved,) = [row.seq for row in journal_of(run) if row.kind == "approval" and row.phase == "result"]
    assert drive(world.fork(run.id, approved)).output == f"error: {SKIPPED}", "it was approved for the other run"


def test_after_a_pause_of_the_tool_a_middleware_asks_anew(ran):
    @tool
    def pay(amount: HumanInput | None = None):
        """Pay."""
        if amount is None:
            return PauseForInputResult("How much?")
        ran.append(amount["text"])
        return "paid"

    run = with_gates(pay, Gate())
    for kind, text in (("question", "yes"), ("input", "5"), ("question", "yes")):
        assert (asked(run).kind, ran) == (kind, [])
        answer(asked(run).id, text=text)
        run = drive(run)
    assert (run.output, ran) == ("ok: paid", ["5"])


class Refused(FunctionMiddleware):
    """Makes a call that is refused, and swallows the error."""

    def __init__(self, name, after):
        self.name, self.after = name, after

    async def process(self, context, call_next):
        if self.after:
            await call_next()
        try:
            getattr(context.ctx, self.name)()
        except Exception:
            context.result = None


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(
    ("name", "after", "words"),
    [
        ("llm", False, "a function middleware cannot call ctx.llm, only ask_human, approve, log, now, pin: "),
        ("now", True, "ctx.now comes after call_next, where no replay "),
    ],
)
def test_any_other_call_fails_the_run_and_says_where(ran, effect, name, after, words):
    run = with_gates(paying(ran, effect), Refused(name, after))
    place, _, rest = run.error["message"].partition(": ")
    assert (run.status, run.error["type"], len(ran)) == (Status.FAILED, "InvalidInputError", int(after))
    assert place.startswith("test_middleware_asks.py:") and rest.startswith(words)
    assert ("was run, but" in JournalEntry.objects.get(path="1", phase="result").result["content"][0]["text"]) is after
    run.retry()
    code(calling("pay"), tools=[paying(ran, effect)])  # the code is fixed
    is_over = after and effect != "idempotent"  # then nothing may run it again
    assert (drive(run).output, len(ran)) == (None if is_over else "ok: paid", 1 + (after and not is_over))
