"""Function middlewares that ask people before the tool runs: asked once, answered once, and the tool runs once."""

import asyncio

import pytest

from ravi_django import answer, register, submit, tool
from ravi_django.agents import FunctionMiddleware, ReActAgent
from ravi_django.kernel import HumanInput, PauseForInputResult, ToolUseBlock
from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.runs import asked, code, drive, every_death, make_run
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)

SKIPPED = "pay was not run: a middleware skipped it and gave no result"
EFFECTS = ["idempotent", "at_most_once", "transactional"]


class Gate(FunctionMiddleware):
    """Logs the day of the call, and asks for each call."""

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


def with_gates(story, tools, *gates):
    agent = code(story, tools=tools)
    agent.middleware = list(gates)
    return agent


@pytest.mark.sqlite
def test_the_run_waits_for_the_person_and_the_answer_decides(ran):
    call = ToolUseBlock(tool_name="pay", arguments={}, call_id="c")
    for text, told, paid in (
        ("yes", "paid", ["paid"]),
        ("no", SKIPPED, []),
    ):
        ran.clear()
        agent = ReActAgent("g8", model=ScriptedModel([call, "done"]), tools=[paying(ran)], middleware=[Gate()])
        register(agent, replace=True)
        run = submit("react/g8", "pay")
        run_until_idle()
        run.refresh_from_db()
        assert (asked(run).text, ran) == ("May it?", [])
        paths = [row.path for row in journal_of(run) if row.path.startswith("turn1.call0")]
        assert paths == ["turn1.call0.1/m1", "turn1.call0.1/m2", "turn1.call0.1/m3"], "no started row of the tool"
        answer(asked(run).id, text=text)
        run_until_idle()

        assert (run.result(), ran, agent.model.calls[1].messages[-1].text) == ("done", paid, told)


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_worker_that_dies_anywhere_loses_no_answer_and_pays_once(clock, ran, effect):
    def story(drive):
        ran.clear()
        with_gates(calling("pay"), [paying(ran, effect)], Gate(), Gate())
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
            await call_next()


def test_a_middleware_may_have_the_only_call_of_a_tool_approved(ran, ann):
    with_gates(calling("pay"), [paying(ran, max_calls=1)], Approve())
    run = drive(make_run())
    request = asked(run)
    assert (request.kind, request.path, request.tool) == ("approval", "1/m1", "pay")
    answer(request.id, action="approve", by=ann)
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

    with_gates(calling("pay"), [pay], Gate())
    run = drive(make_run())
    for kind, text in (("question", "yes"), ("input", "5"), ("question", "yes")):
        assert (asked(run).kind, ran) == (kind, [])
        answer(asked(run).id, text=text)
        run = drive(run)
    assert (run.output, ran) == ("ok: paid", ["5"])


def test_several_questions_of_a_middleware_wait_together(ran):
    class Two(FunctionMiddleware):
        async def process(self, context, call_next):
            said = await asyncio.gather(*(context.ctx.ask_human(f"{name}?") for name in ("Ann", "Bob")))
            if all(one["text"] == "yes" for one in said):
                await call_next()

    with_gates(calling("pay"), [paying(ran)], Two())
    run = drive(make_run())
    for name in ("Bob", "Ann"):
        assert (run.status, ran) == (Status.SUSPENDED, [])
        answer(HumanRequest.objects.get(run=run, status="pending", text=f"{name}?").id, text="yes")
        run = drive(run)
    assert (run.output, ran) == ("ok: paid", ["paid"])


class Refused(FunctionMiddleware):
    """Makes a call that is refused, and swallows the error."""

    def __init__(self, name, *args, after=False):
        self.name, self.args, self.after = name, args, after

    async def process(self, context, call_next):
        if self.after:
            await call_next()
        try:
            getattr(context.ctx, self.name)(*self.args)
        except Exception:
            context.result = None


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(
    ("name", "args", "after", "words"),
    [
        ("llm", ([],), False, "a function middleware cannot call ctx.llm, only ask_human, approve, log, now, pin: "),
        ("sleep", (5,), True, "a function middleware cannot call ctx.sleep, only "),
        ("ask_human", ("Was it right?",), True, "ctx.ask_human comes after call_next, where no replay "),
        ("now", (), True, "ctx.now comes after call_next, where no replay "),
    ],
)
def test_any_other_call_fails_the_run_and_says_where(ran, effect, name, args, after, words):
    with_gates(calling("pay"), [paying(ran, effect)], Refused(name, *args, after=after))
    run = drive(make_run())

    assert (run.status, run.error["type"], len(ran)) == (Status.FAILED, "InvalidInputError", int(after))
    place, _, rest = run.error["message"].partition(": ")
    assert place.startswith("test_middleware_asks.py:") and rest.startswith(words)
    row = JournalEntry.objects.get(kind="tool.call", phase="result")
    assert (row.error["message"], "was run, but" in row.result["content"][0]["text"]) == (run.error["message"], after)
    run.retry()
    with_gates(calling("pay"), [paying(ran, effect)])  # the code is fixed
    run = drive(run)
    is_over = after and effect != "idempotent"  # then nothing may run it again
    assert (run.output, len(ran)) == (None if is_over else "ok: paid", 1 + (after and not is_over))
