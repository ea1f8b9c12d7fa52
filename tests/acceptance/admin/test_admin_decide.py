"""The page that a person decides on: who may, every kind and button, who came first, and nothing by a GET."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ravi_django.kernel import Addressees
from ravi_django.models import HumanRequest, StickyDecision, Turn
from tests.support import world
from tests.support.inbox import EVIL, INBOX, ask, decide, html_of, logged_in, ours, page_of, person, words
from tests.support.runs import asked, code, drive, make_run
from tests.support.world import TOP_UP

pytestmark = pytest.mark.django_db(transaction=True)

ASKED = {"customer": "ACME", "amount": 100}
SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "description": "Whom it goes to"},
        "amount": {"type": "number", "minimum": 0},
    },
    "required": ["customer", "amount"],
}


@pytest.fixture
def fay(transactional_db: None) -> Any:
    return person("fay", "finance")


@pytest.fixture
def client(fay: Any) -> Any:
    return logged_in(fay)


def answer_of(request: HumanRequest) -> Any:
    request.refresh_from_db()
    return request.answer


def is_pending(request: HumanRequest) -> bool:
    request.refresh_from_db()
    return request.status == "pending" and request.answer is None and request.version == 1


# ---------------------------------------------------------------------------------------------------------- who may


def test_who_is_addressed_decides_and_it_is_recorded_under_their_name(fay: Any, client: Any) -> None:
    request = ask()

    response = decide(client, request, "approve", reason="The order is signed.")

    assert response.status_code == 302 and response.url == INBOX
    assert "Approved: send_invoice (amount=100, customer=ACME)" in words(html_of(client.get(INBOX)))
    assert answer_of(request)["action"] == "approve"
    assert (request.status, request.answered_by) == ("answered", fay)
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id) == (fay, str(request.pk))


@pytest.mark.parametrize("who", ["nobody", "reader", "owner", "four eyes", "superuser owner with four eyes"])
def test_who_is_not_addressed_decides_nothing(who: str) -> None:
    users = {
        "nobody": lambda: person("carl"),
        "reader": lambda: person("rita", may=("view_humanrequest", "change_humanrequest")),
        "owner": lambda: person("olga"),
        "four eyes": lambda: person("olga", "finance"),
        "superuser owner with four eyes": lambda: person("olga", superuser=True),
    }
    user = users[who]()
    run = make_run(owner=user if user.username == "olga" else None)
    to = Addressees.model_validate({"steps": [{"to": "group:finance"}], "four_eyes": "four" in who})
    request = ask(run=run, to=to)
    client = logged_in(user)

    shown, posted = client.get(page_of(request)), decide(client, request, "approve")

    if who == "nobody":
        assert (shown.status_code, posted.status_code) == (404, 404)
    else:
        assert posted.status_code == 403
        html = ours(html_of(shown))
        assert 'name="action"' not in html and 'id="decide"' not in html
        assert "You may read this" in html
    assert is_pending(request)


def test_a_superuser_and_a_delegate_decide() -> None:
    from ravi_django.models import Delegation

    fay, dan = person("fay", "finance"), person("dan")
    Delegation.objects.create(user=fay, delegate=dan, since=timezone.now() - timedelta(hours=1))
    first, second = ask(), ask()

    assert decide(logged_in(person("root", superuser=True)), first, "deny").status_code == 302
    assert decide(logged_in(dan), second, "deny").status_code == 302

    assert answer_of(first)["by"] == "root"
    assert (answer_of(second)["by"], second.answer["instead_of"]) == ("dan", "fay")
    assert "by dan, in place of fay" in words(html_of(logged_in(fay).get(page_of(second))))


def test_the_sites_own_rule_takes_the_buttons_away(settings: Any, client: Any) -> None:
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": lambda user, request: False}
    request = ask()

    assert 'name="action"' not in html_of(client.get(page_of(request)))
    assert decide(client, request, "approve").status_code == 403
    assert is_pending(request)


def test_a_token_and_a_post_are_needed(fay: Any, client: Any) -> None:
    request = ask()
    strict = logged_in(fay, enforce_csrf_checks=True)

    assert decide(strict, request, "approve").status_code == 403
    for query in ("?action=approve&decision-version=1", "?decision-action=approve&decision-version=1"):
        assert client.get(f"{page_of(request)}{query}").status_code == 200
        assert client.head(f"{page_of(request)}{query}").status_code == 200
    assert client.get(f"{INBOX}{request.pk}/reassign/?reassign-to=user:fay").status_code == 405
    assert is_pending(request)


# ------------------------------------------------------------------------------------------------- kinds and buttons


@pytest.mark.parametrize("action", ["approve", "deny", "skip", "cancel"])
def test_an_approval_is_decided(client: Any, action: str) -> None:
    request = ask()

    assert decide(client, request, action, reason="because").status_code == 302

    assert answer_of(request) == {"action": action, "reason": "because", "by": "fay"}


def test_arguments_are_changed_within_the_schema_and_the_difference_is_shown(client: Any) -> None:
    request = ask(details={"schema": SCHEMA, "description": "Sends an invoice."})
    assert "Whom it goes to" in html_of(client.get(page_of(request)))

    request.refresh_from_db()
    amount = f"arg_{list(request.about['schema']['properties']).index('amount')}"
    refused = decide(client, request, "edit", **{amount: "-5"})
    assert "do not fit send_invoice" in html_of(refused, 400)
    assert 'value="-5"' in ours(html_of(refused, 400))
    assert is_pending(request)

    decide(client, request, "edit", **{amount: "90"}, reason="a rebate")
    assert answer_of(request)["arguments"] == {**ASKED, "amount": 90}
    text = words(ours(html_of(client.get(page_of(request)))))
    assert "approved with changes by fay" in text
    assert "- &quot;amount&quot;: 100" in text and "+ &quot;amount&quot;: 90" in text


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("{", "This is not JSON"),
        ('{"customer": "ACME", "amount": 1, "amount": 100}', "is in it twice"),
        ('{"customer": "ACME", "amount": NaN}', "NaN is no number"),
        ("[1]", "needs arguments, an object"),
        ("[" * 100_000, "This is not JSON"),
    ],
)
def test_arguments_that_are_none_are_not_guessed_at(client: Any, typed: str, complaint: str) -> None:
    request = ask()

    assert complaint in html_of(decide(client, request, "edit", arguments=typed), 400)
    assert is_pending(request)


def test_a_button_that_would_ignore_what_was_typed_is_refused(client: Any) -> None:
    request = ask()
    changed = json.dumps({**ASKED, "amount": 1})

    assert "This is changed" in html_of(decide(client, request, "approve", arguments=changed), 400)
    assert "This is not JSON" in html_of(decide(client, request, "approve", arguments=""), 400)
    assert "Nothing is changed" in html_of(decide(client, request, "edit"), 400)
    assert "sticky goes with approve or deny" in html_of(
        decide(client, request, "edit", arguments=changed, sticky="on"), 400
    )
    assert is_pending(request)


@pytest.mark.parametrize("action", ["", "destroy", "answer", "resolve", "happened", "choose:0"])
def test_a_button_that_is_not_there_decides_nothing(client: Any, action: str) -> None:
    request = ask()

    assert decide(client, request, action).status_code == 400
    assert is_pending(request)


def test_a_decision_can_hold_for_the_session(client: Any) -> None:
    request = ask()

    decide(client, request, "deny", sticky="on", reason="never")

    kept = StickyDecision.objects.get()
    assert (kept.tool, kept.action, kept.risk, kept.decided_by_name) == ("send_invoice", "deny", "high", "fay")
    assert "and for the rest of the session" in html_of(client.get(page_of(request)))


def test_a_question_is_answered_by_a_choice_or_in_words(client: Any) -> None:
    choices = ["red", EVIL]
    first, second, third = (ask("question", text="Which?", choices=choices) for _ in range(3))

    decide(client, first, "choose:1")
    decide(client, second, "answer", text="green\r\nand blue")
    both = decide(client, third, "choose:0", text="green")

    assert answer_of(first)["text"] == EVIL
    assert answer_of(second)["text"] == "green\nand blue"
    assert "pressed a choice" in html_of(both, 400)
    assert "an answer needs a text" in html_of(decide(client, third, "answer"), 400)
    assert is_pending(third)
    for action in ("choose:2", "choose:-1", "choose:", "choose:x"):
        assert decide(client, third, action).status_code == 400
    decide(client, third, "skip", reason="no idea")
    assert answer_of(third)["action"] == "skip"


def test_a_question_without_free_text_has_its_choices_alone(client: Any) -> None:
    request = ask("question", choices=["yes", "no"], details={"free_text": False})

    html = ours(html_of(client.get(page_of(request))))
    assert 'name="decision-text"' not in html and 'value="answer"' not in html
    decide(client, request, "choose:0")

    assert answer_of(request)["text"] == "yes"


def test_several_things_at_once_have_a_field_each(client: Any) -> None:
    request = ask("input", tool="book", details={"questions": {"from": "From where?", "to": f"To where? {EVIL}"}})
    html = html_of(client.get(page_of(request)))
    assert "From where?" in html and EVIL not in html

    first, second = ("value_0", "value_1") if 'value_0">From' in html else ("value_1", "value_0")

    refused = decide(client, request, "answer", **{first: "Ulm", second: " "})
    assert "An answer to each" in html_of(refused, 400) and "Ulm" in html_of(refused, 400)
    decide(client, request, "answer", **{first: "Ulm", second: "Rome"})

    assert answer_of(request)["values"] == {"from": "Ulm", "to": "Rome"}


@pytest.mark.parametrize("outcome", ["happened", "run_again", "fail"])
def test_what_became_of_an_effect_is_decided(client: Any, outcome: str) -> None:
    request = ask("uncertain", to="staff", tool="send", arguments={"to": "ACME"}, text="May have happened.")

    decide(client, request, outcome, result="invoice 7" if outcome == "happened" else "", reason="I looked")

    given = answer_of(request)
    assert (given["action"], given["outcome"], given["reason"]) == ("resolve", outcome, "I looked")
    assert given.get("result") == ("invoice 7" if outcome == "happened" else None)


def test_a_result_goes_with_it_happened_alone_and_not_too_early(client: Any) -> None:
    soon = timezone.now() + timedelta(hours=1)
    request = ask("uncertain", to="staff", tool="send", not_before=soon)

    assert "goes with" in html_of(decide(client, request, "run_again", result="7"), 400)
    early = html_of(decide(client, request, "happened", result="invoice 7"), 409)

    assert "can be answered from" in early and "invoice 7" in early
    assert is_pending(request)


def test_limits_of_a_budget_are_approved_or_changed(client: Any) -> None:
    html = html_of(client.get(page_of(budget := ask(tool=TOP_UP, to="staff", arguments={"max_turns": 4}, risk=""))))
    assert "More budget?" in html and 'name="decision-sticky"' not in html

    changed = {"arguments": None, "limit_max_turns": "9"}
    assert "This is changed" in html_of(decide(client, budget, "approve", **changed), 400)
    assert "A number, please" in html_of(decide(client, budget, "edit", limit_max_turns="many"), 400)
    assert "arguments" in html_of(decide(client, budget, "edit", limit_max_turns="-3"), 400)
    assert is_pending(budget)


def test_a_real_top_up_goes_through(client: Any) -> None:
    from tests.support.budgets import USER, model

    async def story(ctx: Any, inbox: Any) -> str:
        for _ in range(3):
            await ctx.llm([USER])
        return "done"

    code(story, model=model())
    run = drive(make_run(budget={"max_turns": 2, "when_exhausted": "ask"}))
    request = HumanRequest.objects.get(run=run, status="pending")

    suggested = {f"limit_{name}": str(value) for name, value in request.arguments.items()}
    assert decide(client, request, "edit", **{**suggested, "limit_max_turns": "3"}).status_code == 302

    assert answer_of(request)["arguments"] == {"max_turns": 3}
    assert drive(run).status == "completed"


def test_the_run_goes_on_with_what_was_decided_in_the_admin(client: Any) -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        told = await ctx.ask_human("Which colour?", ["red", "blue"], to="group:finance")
        return f"{told['action']} {told['text']} {told['by']}"

    code(story)
    run = drive(make_run())

    decide(client, asked(run), "choose:1")

    assert drive(run).output == "answer blue fay"


# ------------------------------------------------------------------------------------------------- who came first


def test_the_second_is_told_who_was_first_and_keeps_what_they_typed(client: Any) -> None:
    request = ask()
    world.answer(request.pk, "deny", by=person("gus", "finance"), reason="The sum is wrong")

    late = decide(client, request, "approve", version=1, reason="I had my reasons")

    text = words(html_of(late, 409))
    assert "Yours was not recorded: gus was first" in text and "denied" in text
    assert "I had my reasons" in text and "The sum is wrong" in text
    assert 'name="action"' not in ours(html_of(late, 409))
    assert answer_of(request)["by"] == "gus"


def test_one_that_changed_meanwhile_is_looked_at_again(client: Any) -> None:
    person("gus", "directors", "finance")
    request = ask()
    world.reassign(request.pk, "staff", by=None, reason="everybody")

    late = html_of(decide(client, request, "approve", version=1, reason="fine by me"), 409)

    assert "It has changed since you opened it" in words(late)
    assert "fine by me</textarea>" in late
    assert 'name="decision-version" value="2"' in late
    request.refresh_from_db()
    assert request.status == "pending"
    assert decide(client, request, "approve", version=2).status_code == 302


@pytest.mark.parametrize("version", ["", "x", "1.5", "1" * 40])
def test_nobody_decides_without_saying_what_they_saw(client: Any, version: Any) -> None:
    request = ask()

    assert decide(client, request, "approve", version=version).status_code in (400, 409)
    assert is_pending(request)


def test_one_whose_time_is_over_or_whose_run_has_ended_is_not_decided(client: Any) -> None:
    expired, ended = ask(), ask()
    HumanRequest.objects.filter(pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    type(ended.run).objects.filter(pk=ended.run_id).update(status="cancelled")

    assert "expired at" in html_of(decide(client, expired, "approve"), 409)
    assert "is cancelled already" in html_of(decide(client, ended, "approve"), 409)
    assert is_pending(expired) and is_pending(ended)


# -------------------------------------------------------------------------------------------------------- the page


def test_the_page_has_all_that_one_needs_to_decide(client: Any) -> None:
    olga = person("olga", staff=False)
    person("dora", "directors")
    run = make_run(owner=olga, cost="0.0421", input_tokens=5)
    said = [{"type": "text", "text": "Please invoice ACME."}]
    Turn.objects.create(session=run.session, run=run, position=0, index=0, role="user", content=said)
    steps = [("group:finance", 4 * 3600), ("group:directors", 86400)]
    request = ask(run=run, to=steps, details={"schema": SCHEMA, "description": "Sends it by e-mail."}, risk="critical")

    text = words(html_of(client.get(page_of(request))))

    for part in (
        "May test/code call send_invoice?",
        "&quot;customer&quot;: &quot;ACME&quot;",
        "Sends it by e-mail.",
        "amount number, required",
        "risk critical",
        "olga",
        "$0.0421",
        "Please invoice ACME.",
        "group finance is asked now has 4 h",
        "group directors is asked instead",
        "it is denied",
        "opened",
        str(request.arguments_hash),
    ):
        assert part in text, part


def test_the_history_tells_of_each_that_had_a_hand_in_it(fay: Any, client: Any) -> None:
    person("dora", "directors")
    request = ask(to=["group:finance"])
    world.reassign(request.pk, "group:directors", by=fay, reason="above my limit")
    world.answer(request.pk, "deny", by=type(fay).objects.get(username="dora"), reason="no")

    text = words(html_of(logged_in(person("root", superuser=True)).get(page_of(request)))).split("History")[-1]

    assert text.index("opened") < text.index("reassigned") < text.index("answered")
    assert "fay group directors above my limit" in text and "dora" in text


def test_the_run_is_linked_for_who_may_see_it(client: Any) -> None:
    request = ask()
    link = f"/admin/ravi/run/{request.run_id}/change/"

    assert link not in html_of(client.get(page_of(request)))
    assert link in html_of(logged_in(person("gus", "finance", may=("view_run",))).get(page_of(request)))


@pytest.mark.parametrize("kind", ["question", "approval", "input", "uncertain"])
def test_nothing_that_people_or_models_say_is_markup(kind: str) -> None:
    evil = person(EVIL, EVIL)
    run = make_run()
    said = [{"type": "text", "text": EVIL}, {"type": "tool_use", "tool_name": EVIL, "arguments": {EVIL: EVIL}}]
    Turn.objects.create(session=run.session, run=run, position=0, index=0, role="user", content=said)
    schema = {"properties": {EVIL: {"type": EVIL, "description": EVIL}}, "description": EVIL}
    details = {"context": EVIL, "schema": schema, "description": EVIL, "free_text": True}
    details |= {"questions": {EVIL: EVIL}} if kind == "input" else {}
    choices = [EVIL, "</script>"] if kind == "question" else None
    fields = {"text": EVIL, "tool": EVIL, "arguments": {EVIL: EVIL}, "details": details, "choices": choices}
    request = ask(kind, run=run, to=[(f"group:{EVIL}", 60), f"user:{EVIL}"], **fields)
    client = logged_in(evil)
    typed = {"text": EVIL, "result": EVIL, "value_0": EVIL, "arguments": EVIL if kind == "approval" else None}

    pages = [
        html_of(client.get(page_of(request))),
        decide(client, request, EVIL, reason=EVIL, **typed).content.decode(),
    ]
    action = {"question": "answer", "approval": "deny", "input": "answer", "uncertain": "happened"}[kind]
    assert decide(client, request, action, reason=EVIL, **{**typed, "arguments": None}).status_code == 302
    pages += [html_of(client.get(address)) for address in (INBOX, page_of(request), f"{INBOX}{request.pk}/history/")]
    pages.append(decide(client, request, "skip", version=1, reason=EVIL).content.decode())

    assert all(EVIL not in page and "<script>alert" not in page for page in pages)
    assert "&lt;script&gt;" in pages[0]


def test_enter_in_a_field_presses_nothing_and_each_field_has_its_label(client: Any) -> None:
    html = ours(html_of(client.get(page_of(ask()))))

    form = html[html.index('id="decision"') :].split("</form>")[0]
    assert form.index("<button") == form.index('<button type="submit" name="action" value=""')
    for name in ("arguments", "reason", "sticky"):
        assert f'for="id_decision-{name}"' in form and f'aria-describedby="decision-{name}-note"' in form
        assert f'id="decision-{name}-note"' in form
    assert 'accesskey="a"' in form and 'accesskey="d"' in form


def test_what_the_page_costs_does_not_grow(client: Any) -> None:
    request = ask(to=[("group:finance", 60), "staff"])
    client.get(page_of(request))
    with CaptureQueriesContext(connection) as few:
        client.get(page_of(request))
    said = [{"type": "text", "text": "hi"}]
    for n in range(30):
        ask(run=request.run)
        Turn.objects.create(
            session=request.run.session, run=request.run, position=n, index=n, role="user", content=said
        )

    with CaptureQueriesContext(connection) as many:
        client.get(page_of(request))

    assert len(many) == len(few) <= 30


# ---------------------------------------------------------------------------------------------------- somebody else


def test_somebody_else_is_asked_instead(client: Any) -> None:
    person("dora", "directors")
    request = ask()
    address = f"{INBOX}{request.pk}/reassign/"
    fields = {"reassign-to": "group:directors", "reassign-reason": "above my limit", "reassign-version": "1"}

    assert "group:nobody" in html_of(client.post(address, {**fields, "reassign-to": "group:nobody"}), 400)
    assert client.post(address, {**fields, "reassign-to": "everybody"}).status_code == 400
    assert client.post(address, {**fields, "reassign-version": "7"}).status_code == 409
    assert client.post(address, fields).status_code == 302

    request.refresh_from_db()
    assert (request.to, request.version, request.status) == ("group:directors", 2, "pending")
    assert client.post(address, fields).status_code == 404


def test_who_may_only_read_asks_nobody_else() -> None:
    request = ask()
    fields = {"reassign-to": "user:rita", "reassign-version": "1"}
    reader = logged_in(person("rita", may=("view_humanrequest",)))

    assert reader.post(f"{INBOX}{request.pk}/reassign/", fields).status_code == 403
    assert is_pending(request)


def test_an_operator_asks_somebody_else_and_decides_nothing() -> None:
    request = ask()
    person("dora", "directors")
    operator = logged_in(person("opal", may=("view_humanrequest", "change_humanrequest")))
    html = ours(html_of(operator.get(page_of(request))))
    assert 'id="reassign"' in html and 'id="decide"' not in html

    fields = {"reassign-to": "group:directors", "reassign-version": "1"}
    assert operator.post(f"{INBOX}{request.pk}/reassign/", fields).status_code == 302

    request.refresh_from_db()
    assert request.to == "group:directors"
