"""Approvals by people: asked once for each call, waited for as rows, decided once, the same on every replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ravi_django import tool
from ravi_django.kernel import ConflictError, InvalidInputError, RunContext
from ravi_django.models import AuditRecord, HumanRequest, JournalEntry, Status
from ravi_django.signals import request_opened
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.approvals import call, decisions, open_requests, payer, paying, results, rows, run_of, user
from tests.support.runs import asked, auntil, code, drive, make_run, take_over
from tests.support.world import retry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann():
    return user("ann", is_staff=True)


@pytest.fixture
def done():
    return []


@pytest.fixture
def pay(done):
    return paying(done)


@pytest.mark.sqlite
def test_a_call_waits_for_a_person_and_is_made_when_it_is_approved(ann, pay, done):
    agent = payer(pay)
    run = drive(run_of())
    request = asked(run)
    assert done == []
    assert (request.kind, request.tool, request.risk, request.to) == ("approval", "pay", "high", "staff")
    assert request.text == "May react/payer call pay with amount=5? It is of high risk."
    assert request.arguments == {"amount": 5}
    assert request.details == {"call_id": "c1", "description": "Pay somebody.", "schema": pay.parameters}

    world.answer(request, "approve", by=ann)
    run = drive(run)

    assert (run.status, run.output, done) == (Status.COMPLETED, "done", [5])
    assert results(agent) == {"c1": "paid 5 to ACME"}
    assert [(row.kind, row.phase) for row in journal_of(run) if "call0" in row.path] == [
        ("approval", "started"),
        ("request.opened", "result"),
        ("approval", "result"),
        ("tool.call", "result"),
    ]
    assert decisions(run) == [{"id": str(request.id), "decision": "approved", "reason": "", "by": "ann"}]


@pytest.mark.parametrize(
    ("action", "more", "told"),
    [
        ("deny", {}, "denied: pay was not approved; do not call it again unchanged"),
        ("deny", {"reason": "too much"}, "denied: too much; do not call it again unchanged"),
        ("skip", {}, "skipped: pay was not called; go on without it"),
        ("skip", {"reason": "done already"}, "skipped: done already; go on without it"),
        ("cancel", {}, "denied: the request was cancelled; do not call it again unchanged"),
        (
            "cancel",
            {"reason": "wrong"},
            "denied: the request was cancelled: wrong; do not call it again unchanged",
        ),
    ],
)
def test_what_is_not_approved_is_told_to_the_model_in_words(ann, pay, done, action, more, told):
    agent = payer(pay)
    run = drive(run_of())

    world.answer(asked(run), action, by=ann, **more)
    run = drive(run)

    assert (run.status, done, results(agent)) == (Status.COMPLETED, [], {"c1": told})


@pytest.mark.sqlite
def test_an_edited_call_is_made_with_the_persons_arguments_and_the_model_is_told(ann, pay, done):
    agent = payer(pay)
    run = drive(run_of())
    request = asked(run)

    world.answer(request, "edit", arguments={"amount": 3, "to": "Bob"}, reason="half", by=ann)
    run = drive(run)

    assert done == [3]
    assert results(agent)["c1"] == (
        "[a person changed the arguments of this call (half); it was made with "
        '{"amount": 3, "to": "Bob"}]\npaid 3 to Bob'
    )
    request.refresh_from_db()
    assert (request.arguments, request.answer["arguments"]) == ({"amount": 5}, {"amount": 3, "to": "Bob"})
    (made,) = rows(run, "tool.call")
    assert made.request["arguments"] == {"amount": 3, "to": "Bob"}


def test_an_edit_that_does_not_fit_the_schema_is_refused_and_the_request_stays(ann, pay, done):
    payer(pay)
    run = drive(run_of())
    request = asked(run)

    with pytest.raises(InvalidInputError, match="do not fit pay") as found:
        world.answer(request, "edit", arguments={"amount": "much"}, by=ann)

    assert found.value.field == "arguments"
    assert open_requests(run) == [request]


def test_an_edit_that_the_tool_itself_does_not_take_is_denied(ann, done):
    pay = paying(done)
    whole = pay.validate
    pay.validate = lambda arguments: whole(arguments) if arguments["amount"] != 3 else whole({"amount": "three"})
    agent = payer(pay)
    run = drive(run_of())

    world.answer(asked(run), "edit", arguments={"amount": 3}, by=ann)
    run = drive(run)

    assert (run.status, done) == (Status.COMPLETED, [])
    assert results(agent)["c1"].startswith("denied: the changed arguments do not fit: ")


def test_nobody_in_time_is_a_denial(clock, pay, done):
    user("ann", is_staff=True)
    agent = payer(pay, approvers=[("staff", 60)])
    run = drive(run_of())
    request = HumanRequest.objects.get(run=run)
    assert request.expires_at is not None

    clock.advance(61)
    run = drive(run)

    request.refresh_from_db()
    assert (run.status, done, request.status) == (Status.COMPLETED, [], "expired")
    assert results(agent) == {"c1": "denied: nobody answered in time; do not call it again unchanged"}
    with pytest.raises(ConflictError, match="expired already"):
        world.answer(request, "approve")


def test_the_first_decision_wins(ann, pay, done):
    bob = user("bob", is_staff=True)
    payer(pay)
    run = drive(run_of())
    request = asked(run)

    world.answer(request, "deny", by=ann)
    with pytest.raises(ConflictError, match="answered already by ann"):
        world.answer(request, "approve", by=bob)

    assert (drive(run).status, done) == (Status.COMPLETED, [])


@pytest.mark.parametrize(
    ("action", "effect"),
    [("approve", "idempotent"), ("approve", "at_most_once"), ("edit", "at_most_once"), ("deny", "idempotent")],
)
def test_a_worker_that_dies_at_any_commit_asks_once_and_calls_once(clock, ann, done, action, effect):
    agent = payer(paying(done, effect=effect))
    more = {"arguments": {"amount": 4}} if action == "edit" else {}
    wanted = {"approve": [5], "edit": [4], "deny": []}[action]
    said = set()
    for dies in range(1, 7):
        for written in (False, True):
            done.clear()
            run = drive(run_of(), dies=dies, written=written)
            if run.status == Status.RUNNING:
                run = take_over(clock, run)
            world.answer(asked(run), action, by=ann, **more)
            run = drive(run, dies=dies, written=written)
            if run.status == Status.RUNNING:
                run = take_over(clock, run)
            assert HumanRequest.objects.filter(run=run, kind="approval").count() == 1
            if run.status == Status.SUSPENDED:  # begun, and not recorded: a person says whether it has happened
                assert (effect, [request.kind for request in open_requests(run)]) == ("at_most_once", ["uncertain"])
                assert done in ([], wanted)
                continue
            assert run.status == Status.COMPLETED
            assert done == wanted or (effect == "idempotent" and done == wanted * 2)
            said.add(results(agent)["c1"])
    assert len(said) == 1


def test_an_answer_while_the_worker_is_dead_is_found_by_the_next(clock, ann, pay, done):
    payer(pay)
    run = drive(run_of(), dies=2, written=True)
    (request,) = open_requests(run)
    assert run.status == Status.RUNNING

    world.answer(request, "approve", by=ann)

    assert (take_over(clock, run).status, done) == (Status.COMPLETED, [5])


def test_whoever_watches_sees_the_request_come_and_go_once(clock, ann, pay):
    payer(pay)
    run = take_over(clock, drive(run_of(), dies=2, written=True))
    (request,) = open_requests(run)
    world.answer(request, "approve", by=ann)
    run = take_over(clock, drive(run, dies="end"))

    frames = [frame for frame in world.events_page(run.id)[0] if frame["type"].startswith("request")]
    assert [(frame["type"], frame["id"]) for frame in frames] == [
        ("request", str(request.id)),
        ("request.closed", str(request.id)),
    ]
    assert (frames[0]["kind"], frames[0]["tool"], frames[0]["arguments"]) == ("approval", "pay", {"amount": 5})


# --------------------------------------------------------------------------------------------------- several


def test_all_calls_of_a_turn_ask_at_once_and_get_their_own_answers_in_any_order(ann, pay, done):
    agent = payer(pay, [call(number, f"c{number}") for number in (1, 2, 3)], max_parallel_tools=1)
    run = drive(run_of())
    first, second, third = open_requests(run)
    assert [request.details["call_id"] for request in (first, second, third)] == ["c1", "c2", "c3"]
    assert {wait["id"] for wait in run.waiting_on} == {str(request.id) for request in (first, second, third)}

    world.answer(third, "approve", by=ann)
    run = drive(run)
    assert (run.status, done, len(agent.model.calls)) == (Status.SUSPENDED, [3], 1)
    world.answer(second, "deny", reason="no", by=ann)
    run = drive(run)
    assert (run.status, done, len(agent.model.calls)) == (Status.SUSPENDED, [3], 1)
    world.answer(first, "edit", arguments={"amount": 7}, by=ann)
    run = drive(run)

    assert (run.status, done, len(agent.model.calls)) == (Status.COMPLETED, [3, 7], 2)
    told = results(agent)
    assert told["c3"] == "paid 3 to ACME"
    assert told["c2"] == "denied: no; do not call it again unchanged"
    assert told["c1"].endswith("paid 7 to ACME")


def test_answers_of_one_moment_are_replayed_with_one_slot(clock, ann, pay, done):
    payer(pay, [call(number, f"c{number}") for number in range(6)], max_parallel_tools=1)
    run = drive(run_of())
    for request in reversed(open_requests(run)):
        world.answer(request, "approve", by=ann)
    run = drive(run, dies="end")

    run = take_over(clock, run)

    assert (run.status, sorted(done)) == (Status.COMPLETED, list(range(6)))


def test_a_run_of_more_slots_is_replayed_with_fewer(clock, ann, done):
    """What is recorded takes no slot: else the call that has it would wait for another's row, which waits for it."""

    @tool(risk="high", effect="idempotent")
    async def pay(amount: int) -> str:
        """Pay, once both are approved."""
        done.append(amount)
        await auntil(lambda: len(done) == 2)
        return "paid"

    script = [call(number, f"c{number}") for number in (1, 2)]
    payer(pay, script)
    run = drive(run_of())
    first, second = open_requests(run)
    world.answer(second, "approve", by=ann)
    world.answer(first, "approve", by=ann)
    run = drive(run, dies="end")
    kinds = JournalEntry.objects.filter(run=run, kind__in=["approval", "tool.call"], phase="result").order_by("seq")
    *approvals, one, other = kinds
    assert [entry.kind for entry in approvals] == ["approval", "approval"]
    if [one.path.split(".")[1], other.path.split(".")[1]] == [entry.path.split(".")[1] for entry in approvals]:
        _swap(one, other)  # as it may be with many slots: what was approved last has ended first

    payer(pay, script, max_parallel_tools=1)
    run = take_over(clock, run)

    assert (run.status, sorted(done)) == (Status.COMPLETED, [1, 2])


def _swap(one, other):
    one_seq, other_seq = one.seq, other.seq
    JournalEntry.objects.filter(id=one.id).update(seq=-1)
    JournalEntry.objects.filter(id=other.id).update(seq=one_seq)
    JournalEntry.objects.filter(id=one.id).update(seq=other_seq)


def test_a_call_that_needs_no_approval_does_not_wait_for_those_that_do(ann, pay, step, ran):
    from ravi_django.kernel import ToolUseBlock

    free = ToolUseBlock(tool_name="step", arguments={"name": "free"}, call_id="c2")
    payer([pay, step], [call(5), free], max_parallel_tools=1)

    run = drive(run_of())

    assert (ran, run.status) == (["free"], Status.SUSPENDED)


# ------------------------------------------------------------------------------------------------- who is asked


def test_without_anybody_named_it_is_denied_and_written_as_ever(pay, done):
    agent = payer(pay, approvers=None)

    run = drive(run_of())

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [], [])
    words = "denied: pay is of high risk, it needs a person's approval and nobody is configured to give it"
    assert results(agent) == {"c1": words}
    (row,) = rows(run, "log")
    assert (row.name, row.result) == (
        "approval",
        {"tool": "pay", "call_id": "c1", "risk": "high", "decision": "denied"},
    )
    assert rows(run) == []


@pytest.mark.parametrize("to", ["group:finance", "user:nobody", "permission:auth.change_user"])
def test_where_those_who_are_named_are_nobody_it_is_denied_with_words(pay, done, to):
    agent = payer(pay, approvers=to)

    run = drive(run_of())

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [], [])
    assert f"needs a person's approval, and {to} is nobody at present" in results(agent)["c1"]
    (kept,) = decisions(run)
    assert kept["decision"] == "denied"


def test_nobody_there_stays_the_answer_of_a_replay(clock, pay, done):
    agent = payer(pay, approvers="group:finance")
    run = drive(run_of(), dies="end")
    before = results(agent)
    user("fin", "finance")

    run = take_over(clock, run)

    assert (run.status, done, open_requests(run), results(agent)) == (Status.COMPLETED, [], [], before)


def test_the_first_step_with_somebody_is_asked_with_its_own_time(clock, pay):
    user("dora", "directors")
    payer(pay, approvers=[("group:finance", 3600), ("group:managers", 1800), ("group:directors", 60)])

    run = drive(run_of())

    request = HumanRequest.objects.get(run=run)
    assert (request.to, request.level, request.escalates_at) == ("group:directors", 2, None)
    assert request.expires_at <= clock.now + timedelta(seconds=61)


@pytest.mark.parametrize(
    ("agents", "tools", "site", "asked_of"),
    [
        (None, None, "group:site", "group:site"),
        (None, None, {"pay": "group:site", "*": "group:other"}, "group:site"),
        (None, None, {"high": "group:site"}, "group:site"),
        (None, None, {"critical": "group:site"}, None),
        ("group:agent", None, "group:site", "group:agent"),
        ("group:agent", "group:tool", "group:site", "group:tool"),
        ({"pay": "group:agent"}, "group:tool", None, "group:agent"),
        ({"high": "group:agent"}, "group:tool", None, "group:agent"),
        ({"*": "group:agent"}, "group:tool", None, "group:tool"),
        ({"critical": "group:agent"}, None, "group:site", "group:site"),
        ({"pay": "group:agent", "high": "group:other"}, None, None, "group:agent"),
    ],
)
def test_the_agents_word_goes_before_the_tools_and_that_before_the_sites(settings, done, agents, tools, site, asked_of):
    for group in ("site", "other", "agent", "tool"):
        user(group, group)
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {} if site is None else {"approval": site}}
    payer(paying(done, approvers=tools), approvers=agents)

    run = drive(run_of())

    assert [request.to for request in open_requests(run)] == ([] if asked_of is None else [asked_of])


def test_a_setting_that_names_nobody_in_words_denies(settings, pay, done):
    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"approval": "finance"}}
    agent = payer(pay, approvers=None)

    run = drive(run_of())

    assert (run.status, done) == (Status.COMPLETED, [])
    assert "nobody is configured to give it" in results(agent)["c1"]


def raises(user, request):
    raise RuntimeError("the directory is down")


def test_a_sites_rule_that_fails_denies(settings, ann, pay, done):
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": raises}
    payer(pay)

    run = drive(run_of())

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [], [])
    assert decisions(run)[0]["decision"] == "denied"


def test_a_directory_that_fails_denies(monkeypatch, ann, pay, done):
    agent = payer(pay)
    world.patch(monkeypatch, "means_somebody", raises)

    run = drive(run_of())

    assert (run.status, done, open_requests(run)) == (Status.COMPLETED, [], [])
    assert results(agent) == {"c1": "denied: nobody could be asked; do not call it again unchanged"}


@pytest.mark.parametrize("permitted", [False, True])
def test_nobody_is_asked_about_a_tool_that_the_owner_may_not_use(ann, done, permitted, django_user_model):
    owner = django_user_model.objects.create_user("owner", is_superuser=permitted)
    agent = payer(paying(done, permission="auth.view_user"))

    run = drive(run_of(owner=owner))

    if permitted:
        assert asked(run).tool == "pay"
    else:
        assert (run.status, open_requests(run)) == (Status.COMPLETED, [])
        assert "not permitted: pay needs the permission auth.view_user" in results(agent)["c1"]


def test_nobody_is_asked_about_arguments_that_do_not_fit(ann, pay):
    agent = payer(pay, call("many"))

    run = drive(run_of())

    assert (run.status, open_requests(run)) == (Status.COMPLETED, [])
    assert "amount" in results(agent)["c1"]


# ------------------------------------------------------------------------------------------- what it is asked about


@pytest.mark.parametrize(("amount", "asked_about"), [(5, []), (500, ["high"]), (5000, ["critical"])])
def test_the_risk_is_that_of_the_arguments(ann, done, amount, asked_about):
    def by_amount(arguments):
        return "safe" if arguments["amount"] < 100 else "high" if arguments["amount"] < 1000 else "critical"

    payer(paying(done, risk=by_amount), call(amount))

    run = drive(run_of())

    assert [request.risk for request in open_requests(run)] == asked_about


@pytest.mark.parametrize(
    ("risk", "policy", "is_asked"),
    [("safe", "always", True), ("safe", "by_risk", False), ("critical", "never", False), ("critical", "by_risk", True)],
)
def test_a_tool_may_say_itself_when_it_is_asked_about(ann, done, risk, policy, is_asked):
    payer(paying(done, risk=risk, approval=policy))

    run = drive(run_of())

    assert bool(open_requests(run)) is is_asked
    assert done == ([] if is_asked else [5])


def by_amount(arguments):
    return "high" if arguments["amount"] < 1000 else "critical"


def test_an_edit_to_a_riskier_call_is_asked_about_again(ann, done):
    boss = user("boss", "bosses")
    agent = payer(paying(done, risk=by_amount), approvers={"high": "staff", "critical": "group:bosses"})
    run = drive(run_of())
    world.answer(asked(run), "edit", arguments={"amount": 5000}, by=ann)

    run = drive(run)

    request = asked(run)
    assert (done, request.risk, request.to, request.arguments) == ([], "critical", "group:bosses", {"amount": 5000})
    world.answer(request, "approve", by=boss)
    assert (drive(run).status, done) == (Status.COMPLETED, [5000])
    assert "a person changed the arguments" in results(agent)["c1"]


def test_an_edit_to_a_riskier_call_may_be_denied(ann, done):
    agent = payer(paying(done, risk=by_amount))
    run = drive(run_of())
    world.answer(asked(run), "edit", arguments={"amount": 5000}, by=ann)
    run = drive(run)

    world.answer(asked(run), "deny", reason="no", by=ann)

    assert (drive(run).status, done) == (Status.COMPLETED, [])
    assert results(agent) == {"c1": "denied: no; do not call it again unchanged"}


# --------------------------------------------------------------------------------------------- other code's word


def test_a_call_that_has_become_riskier_since_it_was_asked_about_is_not_made(ann, done):
    payer(paying(done))
    run = drive(run_of())
    world.answer(asked(run), "approve", by=ann)

    payer(paying(done, risk="critical"))
    run = drive(run)

    assert (run.status, run.error["type"], done) == (Status.BLOCKED, "DeterminismError", [])
    assert "of high risk when a person was asked" in run.error["message"]


def test_an_approval_is_of_its_arguments_and_of_no_others(ann, done):
    amounts = [5, 6]

    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": amounts[0]}, to="staff")
        if decision.allows:
            done.append(amounts[0])
        return decision.decision

    code(story)
    run = drive(make_run())
    world.answer(asked(run), "approve", by=ann)
    amounts.pop(0)

    run = drive(run)

    assert (run.status, run.error["type"], done) == (Status.BLOCKED, "DeterminismError", [])


def test_agents_code_asks_by_itself(clock, ann):
    async def story(ctx, inbox):
        decision = await ctx.approve("deploy", {"version": 3.0, "big": 1e30}, risk="critical", to="staff", timeout=60)
        return f"{decision.decision}|{decision.reason}|{decision.by}|{decision.allows}"

    code(story)
    run = drive(make_run())
    (request,) = open_requests(run)
    assert (request.tool, request.risk) == ("deploy", "critical")
    world.answer(request, "approve", reason="go", by=ann)
    run = drive(run, dies="end")

    assert take_over(clock, run).output == "approved|go|ann|True"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tool": ""}, "tool"),
        ({"arguments": [1]}, "arguments"),
        ({"risk": "huge"}, "risk"),
        ({"to": "finance"}, "to"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_what_cannot_be_asked_is_named(options, field):
    found = []

    async def story(ctx, inbox):
        given = {"tool": "pay", "arguments": {}, "to": "staff", **options}
        try:
            await ctx.approve(given.pop("tool"), given.pop("arguments"), **given)
        except InvalidInputError as error:
            found.append(error.field)

    code(story)

    assert (drive(make_run()).status, found) == (Status.COMPLETED, [field])


def test_an_at_most_once_tool_cannot_ask(ann):
    @tool(effect="at_most_once")
    async def deploy(ctx: RunContext) -> str:
        """Deploy."""
        return (await ctx.approve("deploy", {}, to="staff")).decision

    async def story(ctx, inbox):
        return (await ctx.tool("deploy")).text

    code(story, tools=[deploy])
    run = drive(make_run())

    assert not HumanRequest.objects.filter(run=run, kind="approval").exists()


def test_every_decision_is_in_the_audit_log(ann, pay):
    payer(pay)
    run = drive(run_of())
    request = asked(run)
    world.answer(request, "edit", arguments={"amount": 3}, by=ann)
    drive(run)

    opened, answered = AuditRecord.objects.filter(run_id=run.id, event="request").order_by("id")
    assert (opened.name, opened.detail["arguments"]) == ("opened", {"amount": 5})
    assert (answered.name, answered.detail["by"]) == ("answered", "ann")
    assert answered.detail["answer"]["arguments"] == {"amount": 3}
    assert opened.detail["arguments_hash"] == request.arguments_hash != ""


def test_a_request_that_a_failure_has_closed_is_asked_again_by_a_retry(clock, ann, done):
    fails, opened = [True], []

    def told(sender, request, **more):
        opened.append(request.id)

    request_opened.connect(told)

    @tool
    async def hold() -> str:
        """Take until the request is there."""
        await auntil(lambda: opened)
        return "held"

    async def other(ctx):
        await ctx.tool("hold")
        if fails:
            raise RuntimeError("no luck")

    async def story(ctx, inbox):
        asking = asyncio.ensure_future(ctx.approve("pay", {}, to=[("staff", 3600)]))
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        await other(ctx)
        return (await asking).decision

    code(story, tools=[hold])
    run = drive(make_run())
    assert run.status == Status.FAILED
    assert HumanRequest.objects.get(run=run).status == "cancelled"
    fails.clear()

    retry(run.id)
    run = drive(run)
    (request,) = open_requests(run)
    world.answer(request, "approve", by=ann)

    assert drive(run).output == "approved"


def test_the_time_that_a_request_is_given_more_of_counts(clock, ann, pay, done):
    payer(pay, approvers=[("staff", 60)])
    run = drive(run_of())
    request = HumanRequest.objects.get(run=run)
    HumanRequest.objects.filter(id=request.id).update(expires_at=request.expires_at + timedelta(seconds=100))

    clock.advance(61)
    run = drive(run)
    assert (run.status, done) == (Status.SUSPENDED, [])
    world.answer(request.id, "approve", by=ann)

    assert (drive(run).status, done) == (Status.COMPLETED, [5])
