"""Approvals by people: asked once for each call, waited for as rows, decided once, the same on every replay."""

from datetime import timedelta

import pytest

from ravi_django import tool
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import HumanRequest, JournalEntry, Status
from ravi_django.testing import journal_of
from tests.support import world
from tests.support.approvals import call, decisions, open_requests, payer, paying, results, rows, run_of, user
from tests.support.cases import case, refused
from tests.support.runs import asked, auntil, code, drive, every_death, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pay(ran):
    return paying(ran)


@pytest.mark.sqlite
def test_a_call_waits_for_a_person_and_is_made_when_it_is_approved(ann, pay, ran):
    agent = payer(pay)
    run = drive(run_of())
    request = asked(run)
    assert ran == []
    assert (request.kind, request.tool, request.risk, request.to) == ("approval", "pay", "high", "staff")
    assert request.text == "May react/payer call pay with amount=5? It is of high risk."
    assert request.arguments == {"amount": 5}
    assert request.details == {"call_id": "c1", "description": "Pay somebody.", "schema": pay.parameters}

    world.answer(request, "approve", by=ann)
    run = drive(run)

    assert (run.status, run.output, ran) == (Status.COMPLETED, "done", [5])
    assert results(agent) == {"c1": "paid 5 to ACME"}
    assert [(row.kind, row.phase) for row in journal_of(run) if "call0" in row.path] == [
        ("approval", "started"),
        ("request.opened", "result"),
        ("approval", "result"),
        ("tool.call", "result"),
    ]
    assert decisions(run) == [{"id": str(request.id), "decision": "approved", "reason": "", "by": "ann"}]


def test_what_is_not_approved_is_told_to_the_model_in_words(ann, pay, ran):
    for action, reason, told in (
        ("deny", "", "denied: pay was not approved; do not call it again unchanged"),
        ("deny", "too much", "denied: too much; do not call it again unchanged"),
        ("skip", "", "skipped: pay was not called; go on without it"),
        ("skip", "done already", "skipped: done already; go on without it"),
        ("cancel", "", "denied: the request was cancelled; do not call it again unchanged"),
        ("cancel", "wrong", "denied: the request was cancelled: wrong; do not call it again unchanged"),
    ):
        agent = payer(pay)
        run = drive(run_of())
        world.answer(asked(run), action, by=ann, reason=reason)
        run = drive(run)

        assert (run.status, ran, results(agent)) == (Status.COMPLETED, [], {"c1": told}), (action, reason)


@pytest.mark.sqlite
def test_an_edited_call_is_made_with_the_persons_arguments_and_the_model_is_told(ann, pay, ran):
    agent = payer(pay)
    run = drive(run_of())
    request = asked(run)

    world.answer(request, "edit", arguments={"amount": 3, "to": "Bob"}, reason="half", by=ann)
    run = drive(run)

    assert ran == [3]
    assert results(agent)["c1"] == (
        "[a person changed the arguments of this call (half); it was made with "
        '{"amount": 3, "to": "Bob"}]\npaid 3 to Bob'
    )
    request.refresh_from_db()
    assert (request.arguments, request.answer["arguments"]) == ({"amount": 5}, {"amount": 3, "to": "Bob"})
    (made,) = rows(run, "tool.call")
    assert made.request["arguments"] == {"amount": 3, "to": "Bob"}


def test_an_edit_that_the_tool_itself_does_not_take_is_denied(ann, ran):
    pay = paying(ran)
    whole = pay.validate
    pay.validate = lambda arguments: whole(arguments) if arguments["amount"] != 3 else whole({"amount": "three"})
    agent = payer(pay)
    run = drive(run_of())
    world.answer(asked(run), "edit", arguments={"amount": 3}, by=ann)
    run = drive(run)
    assert (run.status, ran) == (Status.COMPLETED, [])
    assert results(agent)["c1"].startswith("denied: the changed arguments do not fit: ")


def test_nobody_in_time_is_a_denial(clock, ann, pay, ran):
    agent = payer(pay, approvers=[("staff", 60)])
    run = drive(run_of())
    request = HumanRequest.objects.get(run=run)
    HumanRequest.objects.update(expires_at=request.expires_at + timedelta(seconds=100))  # the row's time counts
    clock.advance(61)
    run = drive(run)
    assert (run.status, ran) == (Status.SUSPENDED, [])

    clock.advance(100)
    run = drive(run)

    request.refresh_from_db()
    assert (run.status, ran, request.status) == (Status.COMPLETED, [], "expired")
    assert results(agent) == {"c1": "denied: nobody answered in time; do not call it again unchanged"}


@pytest.mark.parametrize(("action", "effect"), [("edit", "at_most_once"), ("deny", "idempotent")])
def test_a_worker_that_dies_at_any_commit_asks_once_and_calls_once(clock, ann, ran, action, effect):
    agent = payer(paying(ran, effect=effect))
    more = {"arguments": {"amount": 4}} if action == "edit" else {}
    wanted = [4] if action == "edit" else []
    said = set()

    def story(drive):
        ran.clear()
        run = drive(run_of())
        world.answer(asked(run), action, by=ann, **more)
        return drive(run)

    for run, _ in every_death(clock, story):
        assert HumanRequest.objects.filter(run=run, kind="approval").count() == 1
        if run.status == Status.SUSPENDED:  # begun, and not recorded: a person says whether it has happened
            assert (effect, [request.kind for request in open_requests(run)]) == ("at_most_once", ["uncertain"])
            assert ran in ([], wanted)
            continue
        assert run.status == Status.COMPLETED
        assert ran == wanted
        said.add(results(agent)["c1"])
    assert len(said) == 1


# --------------------------------------------------------------------------------------------------- several


def test_all_calls_of_a_turn_ask_at_once_and_get_their_own_answers_in_any_order(ann, pay, ran):
    agent = payer(pay, [call(number, f"c{number}") for number in (1, 2, 3)], max_parallel_tools=1)
    run = drive(run_of())
    first, second, third = open_requests(run)
    assert [request.details["call_id"] for request in (first, second, third)] == ["c1", "c2", "c3"]
    assert {wait["id"] for wait in run.waiting_on} == {str(request.id) for request in (first, second, third)}

    world.answer(third, "approve", by=ann)
    run = drive(run)
    assert (run.status, ran, len(agent.model.calls)) == (Status.SUSPENDED, [3], 1)
    world.answer(second, "deny", reason="no", by=ann)
    run = drive(run)
    assert (run.status, ran, len(agent.model.calls)) == (Status.SUSPENDED, [3], 1)
    world.answer(first, "edit", arguments={"amount": 7}, by=ann)
    run = drive(run)

    assert (run.status, ran, len(agent.model.calls)) == (Status.COMPLETED, [3, 7], 2)
    told = results(agent)
    assert told["c3"] == "paid 3 to ACME"
    assert told["c2"] == "denied: no; do not call it again unchanged"
    assert told["c1"].endswith("paid 7 to ACME")


def test_a_run_of_more_slots_is_replayed_with_fewer(clock, ann, ran):
    """What is recorded takes no slot: else the call that has it would wait for another's row, which waits for it."""

    @tool(risk="high", effect="idempotent")
    async def pay(amount: int) -> str:
        """Pay, once both are approved."""
        ran.append(amount)
        await auntil(lambda: len(ran) == 2)
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

    assert (run.status, sorted(ran)) == (Status.COMPLETED, [1, 2])


def _swap(one, other):
    for entry, seq in ((one, -1), (other, one.seq), (one, other.seq)):
        JournalEntry.objects.filter(run=entry.run, path=entry.path, kind=entry.kind).update(seq=seq)


def test_a_call_that_needs_no_approval_does_not_wait_for_those_that_do(ann, pay, step, ran):
    free = ToolUseBlock(tool_name="step", arguments={"name": "free"}, call_id="c2")
    payer([pay, step], [call(5), free], max_parallel_tools=1)
    run = drive(run_of())
    assert (ran, run.status) == (["free"], Status.SUSPENDED)


# ------------------------------------------------------------------------------------------------- who is asked


def test_without_anybody_named_it_is_denied_and_written_as_ever(pay, ran):
    agent = payer(pay, approvers=None)
    run = drive(run_of())
    assert (run.status, ran, open_requests(run)) == (Status.COMPLETED, [], [])
    words = "denied: pay is of high risk, it needs a person's approval and nobody is configured to give it"
    assert results(agent) == {"c1": words}
    (row,) = rows(run, "log")
    assert row.name == "approval"
    assert row.result == {"tool": "pay", "call_id": "c1", "risk": "high", "decision": "denied"}
    assert rows(run) == []


def test_where_those_who_are_named_are_nobody_it_is_denied_with_words(clock, pay, ran):
    """Also on a replay, though there is somebody by then."""
    for to in ("user:nobody", "permission:auth.change_user", "group:finance"):
        agent = payer(pay, approvers=to)
        run = drive(run_of(), dies="end")
        before = results(agent)
        if to == "group:finance":
            user("fin", "finance")
        run = take_over(clock, run)
        assert (run.status, ran, open_requests(run), results(agent)) == (Status.COMPLETED, [], [], before)
        assert f"needs a person's approval, and nobody at {to} may answer it" in before["c1"]
        (kept,) = decisions(run)
        assert kept["decision"] == "denied"


def test_the_first_step_with_somebody_is_asked_with_its_own_time(clock, pay):
    user("dora", "directors")
    payer(pay, approvers=[("group:finance", 3600), ("group:managers", 1800), ("group:directors", 60)])
    run = drive(run_of())
    request = HumanRequest.objects.get(run=run)
    assert (request.to, request.level, request.escalates_at) == ("group:directors", 2, None)
    assert request.expires_at <= clock.now + timedelta(seconds=61)


WORDS = [  # of the agent, the tool and the site; and who is asked
    (None, None, {"pay": "group:site", "*": "group:other"}, "group:site"),
    (None, None, {"high": "group:site"}, "group:site"),
    (None, None, {"critical": "group:site"}, None),
    ("group:agent", "group:tool", "group:site", "group:tool"),
    ({"pay": "group:agent"}, "group:tool", None, "group:agent"),
    ({"critical": "group:agent"}, None, "group:site", "group:site"),
    ({"pay": "group:agent", "high": "group:other"}, None, None, "group:agent"),
]


def test_the_agents_word_goes_before_the_tools_and_that_before_the_sites(settings, ran):
    for group in ("site", "other", "agent", "tool"):
        user(group, group)
    for agents, tools, site, asked_of in WORDS:
        settings.RAVI = {**settings.RAVI, "ADDRESSEES": {} if site is None else {"approval": site}}
        payer(paying(ran, approvers=tools), approvers=agents)
        found = [request.to for request in open_requests(drive(run_of()))]
        assert found == ([] if asked_of is None else [asked_of]), (agents, tools, site)


def raises(user, request):
    raise RuntimeError("the directory is down")


def test_where_it_is_not_known_who_is_asked_it_is_denied(settings, monkeypatch, ann, pay, ran):
    """The setting is no address, the site's rule fails, or the directory does."""
    before = settings.RAVI
    for given, approvers, words in (
        ({"ADDRESSEES": {"approval": "finance"}}, None, "nobody is configured to give it"),
        ({"MAY_ANSWER": raises}, "staff", "nobody at staff may answer it"),
        ({}, "staff", "denied: nobody could be asked; do not call it again unchanged"),
    ):
        settings.RAVI = {**before, **given}
        if not given:
            world.patch(monkeypatch, "has_recipient", raises)
        agent = payer(pay, approvers=approvers)

        run = drive(run_of())

        assert (run.status, ran, open_requests(run)) == (Status.COMPLETED, [], []), given
        assert words in results(agent)["c1"]


@pytest.mark.parametrize("permitted", [False, True])
def test_nobody_is_asked_about_a_tool_that_the_owner_may_not_use(ann, ran, permitted, django_user_model):
    owner = django_user_model.objects.create_user("owner", is_superuser=permitted)
    agent = payer(paying(ran, permission="auth.view_user"))
    run = drive(run_of(owner=owner))
    if permitted:
        assert asked(run).tool == "pay"
    else:
        assert (run.status, open_requests(run)) == (Status.COMPLETED, [])
        assert "not permitted: pay needs the permission auth.view_user" in results(agent)["c1"]


# ------------------------------------------------------------------------------------------- what it is asked about


def test_it_is_asked_about_by_the_risk_of_its_arguments_or_as_the_tool_says(ann, ran):
    for risk, policy, amount, about in (
        (by_amount, "by_risk", 1, []),
        (by_amount, "by_risk", 500, ["high"]),
        (by_amount, "by_risk", 5000, ["critical"]),
        ("safe", "always", 5, ["safe"]),
        ("safe", "by_risk", 5, []),
        ("critical", "never", 5, []),
    ):
        ran.clear()
        payer(paying(ran, risk=risk, approval=policy), call(amount))

        run = drive(run_of())

        found = [request.risk for request in open_requests(run)]
        assert (found, ran) == (about, [] if about else [amount]), (risk, policy, amount)


def by_amount(arguments):
    return "safe" if arguments["amount"] < 5 else "high" if arguments["amount"] < 1000 else "critical"


@pytest.mark.parametrize("action", ["approve", "deny"])
def test_an_edit_to_a_riskier_call_is_asked_about_again(ann, ran, action):
    boss = user("boss", "bosses")
    agent = payer(paying(ran, risk=by_amount), approvers={"high": "staff", "critical": "group:bosses"})
    run = drive(run_of())
    world.answer(asked(run), "edit", arguments={"amount": 5000}, by=ann)

    run = drive(run)

    request = asked(run)
    assert (ran, request.risk, request.to, request.arguments) == ([], "critical", "group:bosses", {"amount": 5000})
    world.answer(request, action, by=boss, reason="no")
    assert (drive(run).status, ran) == (Status.COMPLETED, [5000] if action == "approve" else [])
    words = "a person changed the arguments" if action == "approve" else "denied: no; do not call it again unchanged"
    assert words in results(agent)["c1"]


# --------------------------------------------------------------------------------------------- other code's word


def test_a_call_that_has_become_riskier_since_it_was_asked_about_is_not_made(ann, ran):
    payer(paying(ran))
    run = drive(run_of())
    world.answer(asked(run), "approve", by=ann)
    payer(paying(ran, risk="critical"))
    run = drive(run)
    assert (run.status, run.error["type"], ran) == (Status.BLOCKED, "DeterminismError", [])
    assert "of high risk when a person was asked" in run.error["message"]


def test_an_approval_is_of_its_arguments_and_of_no_others(ann, ran):
    amounts = [5, 6]

    async def story(ctx, inbox):
        decision = await ctx.approve("pay", {"amount": amounts[0]}, to="staff")
        if decision.allows:
            ran.append(amounts[0])
        return decision.decision

    code(story)
    run = drive(make_run())
    world.answer(asked(run), "approve", by=ann)
    amounts.pop(0)

    run = drive(run)
    assert (run.status, run.error["type"], ran) == (Status.BLOCKED, "DeterminismError", [])


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


def test_what_cannot_be_asked_is_named():
    async def story(ctx, inbox):
        for options, field in (
            ({"tool": ""}, "tool"),
            ({"arguments": [1]}, "arguments"),
            ({"risk": "huge"}, "risk"),
            ({"to": "finance"}, "to"),
            ({"timeout": 0}, "timeout"),
            ({"description": 5}, "description"),
            ({"schema": [1]}, "schema"),
            ({"schema": {"x": object()}}, "schema"),
        ):
            with case(options), refused(field):
                await ctx.approve(**{"tool": "pay", "arguments": {}, "to": "staff", **options})

    code(story)
    run = drive(make_run())

    assert (run.status, run.error, open_requests(run)) == (Status.COMPLETED, None, [])
