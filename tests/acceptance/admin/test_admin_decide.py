"""The page that a person decides on: who may, every kind and button, who came first, and nothing by a GET."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from ravi_django.kernel import Addressees
from ravi_django.models import Delegation, HumanRequest, Turn
from tests.support import world
from tests.support.budgets import USER, model
from tests.support.cases import case, queries_of
from tests.support.inbox import EVIL, INBOX, ask, decide, html_of, logged_in, ours, page_of, person, words
from tests.support.runs import code, drive, make_run

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


def test_who_is_not_addressed_decides_nothing() -> None:
    readers = {
        "reader": person("rita", may=("view_humanrequest", "change_humanrequest")),
        "owner": person("olga"),
        "owner under four eyes": person("fay", "finance"),
        "superuser and owner under four eyes": person("root", superuser=True),
    }
    for who, user in readers.items():
        with case(who):
            to = Addressees.model_validate({"steps": [{"to": "group:finance"}], "four_eyes": "four" in who})
            request = ask(run=make_run(owner=user if "owner" in who else None), to=to)
            client = logged_in(user)

            html = ours(html_of(client.get(page_of(request))))

            assert "You can only read this" in html and 'name="action"' not in html and 'id="decide"' not in html
            assert decide(client, request, "approve").status_code == 403
            assert is_pending(request)
    nobody = logged_in(person("carl"))
    assert (nobody.get(page_of(request)).status_code, decide(nobody, request, "approve").status_code) == (404, 404)


def test_a_delegate_decides_in_anothers_place(fay: Any) -> None:
    dan, request = person("dan"), ask()
    Delegation.objects.create(user=fay, delegate=dan, since=timezone.now() - timedelta(hours=1))

    assert decide(logged_in(dan), request, "deny").status_code == 302

    assert (answer_of(request)["by"], request.answer["instead_of"]) == ("dan", "fay")
    assert "by dan, on behalf of fay" in words(html_of(logged_in(fay).get(page_of(request))))


def test_a_post_is_needed(client: Any) -> None:
    request = ask()

    for query in ("?action=approve&decision-version=1", "?decision-action=approve&decision-version=1"):
        assert client.get(f"{page_of(request)}{query}").status_code == 200
        assert client.head(f"{page_of(request)}{query}").status_code == 200
    assert client.get(f"{INBOX}{request.pk}/reassign/?reassign-to=user:fay").status_code == 405
    assert is_pending(request)


# ------------------------------------------------------------------------------------------------- kinds and buttons


def test_arguments_are_changed_within_the_schema_and_the_difference_is_shown(client: Any) -> None:
    request = ask(details={"schema": SCHEMA, "description": "Sends an invoice."})
    assert "Whom it goes to" in html_of(client.get(page_of(request)))

    request.refresh_from_db()
    amount = f"arg_{list(request.about['schema']['properties']).index('amount')}"
    refused = decide(client, request, "edit", **{amount: "-5"})
    assert "not valid for send_invoice" in html_of(refused, 400)
    assert 'value="-5"' in ours(html_of(refused, 400))
    assert is_pending(request)

    decide(client, request, "edit", **{amount: "90"}, reason="a rebate")
    assert answer_of(request)["arguments"] == {**ASKED, "amount": 90}
    text = words(ours(html_of(client.get(page_of(request)))))
    assert "approved with changes by fay" in text
    assert "- &quot;amount&quot;: 100" in text and "+ &quot;amount&quot;: 90" in text


def test_what_is_not_clear_decides_nothing(client: Any) -> None:
    request = ask()
    changed = json.dumps({**ASKED, "amount": 1})

    for action, typed, complaint in (
        ("edit", {"arguments": "{"}, "Invalid JSON"),
        ("edit", {"arguments": '{"customer": "ACME", "amount": 1, "amount": 100}'}, "appears twice"),
        ("edit", {"arguments": '{"customer": "ACME", "amount": NaN}'}, "NaN is not a valid number"),
        ("edit", {"arguments": "[1]"}, "needs arguments: a JSON object"),
        ("edit", {"arguments": "[" * 100_000}, "Invalid JSON"),
        ("edit", {"arguments": changed, "sticky": "on"}, "sticky is not allowed with the action edit"),
        ("edit", {}, "Nothing was changed"),
        ("approve", {"arguments": changed}, "You changed this"),
        ("approve", {"arguments": ""}, "Invalid JSON"),
        *((action, {}, "") for action in ("", "destroy", "answer", "resolve", "happened", "choose:0")),
    ):
        with case(action, typed):
            assert complaint in html_of(decide(client, request, action, **typed), 400)
    for version in ("", "x", "1.5", "1" * 40):
        assert decide(client, request, "approve", version=version).status_code in (400, 409), version
    assert is_pending(request)


def test_a_question_is_answered_by_a_choice_or_in_words(client: Any) -> None:
    choices = ["red", EVIL]
    first, second, third = (ask("question", text="Which?", choices=choices) for _ in range(3))

    decide(client, first, "choose:1")
    decide(client, second, "answer", text="green\r\nand blue")
    both = decide(client, third, "choose:0", text="green")

    assert answer_of(first)["text"] == EVIL
    assert answer_of(second)["text"] == "green\nand blue"
    assert "pressed a choice" in html_of(both, 400)
    assert "The answer is empty" in html_of(decide(client, third, "answer"), 400)
    assert is_pending(third)
    for action in ("choose:2", "choose:-1", "choose:", "choose:x"):
        assert decide(client, third, action).status_code == 400
    decide(client, third, "skip", reason="no idea")
    assert answer_of(third)["action"] == "skip"
    html = ours(html_of(client.get(page_of(ask("question", choices=choices, details={"free_text": False})))))
    assert 'value="choose:0"' in html and 'name="decision-text"' not in html and 'value="answer"' not in html


def test_several_things_at_once_have_a_field_each(client: Any) -> None:
    request = ask("input", tool="book", details={"questions": {"from": "From where?", "to": f"To where? {EVIL}"}})
    html = html_of(client.get(page_of(request)))
    assert "From where?" in html and EVIL not in html

    first, second = ("value_0", "value_1") if 'value_0">From' in html else ("value_1", "value_0")

    refused = decide(client, request, "answer", **{first: "Ulm", second: " "})
    assert "Answer each question" in html_of(refused, 400) and "Ulm" in html_of(refused, 400)
    decide(client, request, "answer", **{first: "Ulm", second: "Rome"})

    assert answer_of(request)["values"] == {"from": "Ulm", "to": "Rome"}


def test_what_became_of_an_effect_is_decided_and_not_too_early(client: Any) -> None:
    for outcome, result in (("happened", {"result": "invoice 7"}), ("run_again", {}), ("fail", {})):
        with case(outcome):
            request = ask("uncertain", to="staff", tool="send", not_before=timezone.now() + timedelta(hours=1))
            assert "belongs to" in html_of(decide(client, request, "run_again", result="7"), 400)
            early = html_of(decide(client, request, outcome, **result), 409)
            assert "can be answered from" in early and result.get("result", "") in early
            assert is_pending(request)
            HumanRequest.objects.update(not_before=None)

            decide(client, request, outcome, **result, reason="I looked")

            kept = {"action": "resolve", "outcome": outcome, "reason": "I looked", "by": "fay", **result}
            assert answer_of(request) == kept


def test_limits_of_a_budget_are_approved_or_changed_and_the_run_goes_on(client: Any) -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        for _ in range(3):
            await ctx.llm([USER])
        return "done"

    code(story, model=model())
    run = drive(make_run(budget={"max_turns": 2, "when_exhausted": "ask"}))
    budget = HumanRequest.objects.get(run=run, status="pending")
    html = html_of(client.get(page_of(budget)))
    assert "Raise the budget?" in html and 'name="decision-sticky"' not in html

    changed = {"arguments": None, "arg_0": "3"}
    assert "You changed this" in html_of(decide(client, budget, "approve", **changed), 400)
    assert "Enter a whole number" in html_of(decide(client, budget, "edit", arg_0="many"), 400)
    assert "arguments" in html_of(decide(client, budget, "edit", arg_0="-3"), 400)
    assert is_pending(budget)
    assert decide(client, budget, "edit", **changed).status_code == 302
    assert answer_of(budget)["arguments"] == {"max_turns": 3}
    assert drive(run).status == "completed"


# ------------------------------------------------------------------------------------------------- who came first


def test_the_second_is_told_who_was_first_and_keeps_what_they_typed(client: Any) -> None:
    request = ask()
    world.answer(request.pk, "deny", by=person("gus", "finance"), reason="The sum is wrong")

    late = decide(client, request, "approve", version=1, reason="I had my reasons")

    text = words(html_of(late, 409))
    assert "Your decision was not recorded: gus decided first" in text and "rejected" in text
    assert "I had my reasons" in text and "The sum is wrong" in text
    assert 'name="action"' not in ours(html_of(late, 409))
    assert answer_of(request)["by"] == "gus"


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
        "group finance assigned now for 4 h",
        "the request goes to group directors",
        "the request is rejected",
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


def test_enter_in_a_field_presses_nothing_and_each_field_has_its_label(client: Any) -> None:
    html = ours(html_of(client.get(page_of(ask()))))

    form = html[html.index('id="decision"') :].split("</form>")[0]
    assert form.index("<button") == form.index('<button type="submit" name="action" value=""')
    for name in ("arguments", "reason", "sticky"):
        assert f'for="id_decision-{name}"' in form and f'aria-describedby="decision-{name}-note"' in form
        assert f'id="decision-{name}-note"' in form
    assert 'accesskey="a"' in form and 'accesskey="r"' in form


def test_what_the_page_costs_does_not_grow(client: Any) -> None:
    request = ask(to=[("group:finance", 60), "staff"])
    client.get(page_of(request))
    few = queries_of(lambda: client.get(page_of(request)))
    said = [{"type": "text", "text": "hi"}]
    for n in range(30):
        ask(run=request.run)
        Turn.objects.create(
            session=request.run.session, run=request.run, position=n, index=n, role="user", content=said
        )

    assert queries_of(lambda: client.get(page_of(request))) == few <= 30


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


def test_an_operator_asks_somebody_else_and_decides_nothing() -> None:
    request = ask()
    person("dora", "directors")
    operator = logged_in(person("opal", may=("view_humanrequest", "change_humanrequest")))
    html = ours(html_of(operator.get(page_of(request))))
    assert 'id="reassign"' in html and 'id="decide"' not in html

    fields = {"reassign-to": "group:directors", "reassign-version": "1"}
    reader = logged_in(person("rita", may=("view_humanrequest",)))
    assert reader.post(f"{INBOX}{request.pk}/reassign/", fields).status_code == 403
    assert operator.post(f"{INBOX}{request.pk}/reassign/", fields).status_code == 302

    request.refresh_from_db()
    assert request.to == "group:directors"
