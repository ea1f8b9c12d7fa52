"""What a person reads and fills in to decide: nothing hidden, plain words, a field an argument, no dead button."""

from __future__ import annotations

from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.template import RequestContext, Template
from django.utils import timezone

from ravi_django.models import HumanRequest, Turn
from tests.support import world
from tests.support.cases import case
from tests.support.inbox import EVIL, INBOX, ask, decide, html_of, logged_in, ours, page_of, person, words
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[3]
SPOOF = f"{EVIL}AC\u202e001 fo\u202cME\u2066\x1b"
SHOWN = r"AC\u202e001 fo\u202cME\u2066\u001b"
HIDDEN = "\u202e\u202c\u2066\x1b"
SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "description": "Whom it goes to"},
        "amount": {"type": "number", "minimum": 0},
        "copies": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "currency": {"enum": ["EUR", "USD"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "lines": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["customer", "amount"],
}
ASKED = {
    "customer": "ACME",
    "amount": 100.5,
    "copies": 2,
    "urgent": False,
    "currency": "EUR",
    "note": None,
    "lines": ["a"],
}


def invoice(**asked: Any) -> HumanRequest:
    return ask(**{"arguments": ASKED, "details": {"schema": SCHEMA}, **asked})


def named(request: HumanRequest, **typed: str) -> dict[str, str]:
    """By the names of their fields: a database has an order of its own."""
    request.refresh_from_db()
    places = {name: place for place, name in enumerate(request.about["schema"]["properties"])}
    return {f"arg_{places[name]}" if name in places else name: value for name, value in typed.items()}


def answer_of(request: HumanRequest) -> Any:
    request.refresh_from_db()
    return request.answer


# --------------------------------------------------------------------------------------------------- nothing hidden


def spoofed(kind: str = "approval") -> HumanRequest:
    run = make_run(owner=person(EVIL))
    said = [{"type": "text", "text": SPOOF}, {"type": "tool_use", "tool_name": SPOOF, "arguments": {"a": SPOOF}}]
    Turn.objects.create(session=run.session, run=run, position=0, index=0, role="user", content=said)
    properties = {"customer": {"type": "string", "description": SPOOF}, SPOOF: {"enum": [SPOOF, "b"]}}
    schema = {"properties": properties, "description": SPOOF}
    details: dict[str, Any] = {"context": SPOOF, "description": SPOOF, "schema": schema}
    details |= {"questions": {SPOOF: SPOOF}} if kind == "input" else {}
    asked: dict[str, Any] = {"arguments": {"customer": SPOOF, SPOOF: SPOOF}, "details": details}
    to = [("group:finance", 3600), f"user:{EVIL}"]
    return ask(
        kind, run=run, to=to, text=SPOOF, tool=f"t{SPOOF}", choices=[SPOOF] if kind == "question" else None, **asked
    )


def shows_as_text(page: str) -> bool:
    return SHOWN in page and EVIL not in page and not set(HIDDEN) & set(page)


@pytest.mark.parametrize("kind", ["approval", "question", "input", "uncertain"])
def test_nothing_is_markup_and_no_character_is_hidden_from_who_decides(kind: str) -> None:
    request = spoofed(kind)
    client = logged_in(person("root", superuser=True))
    run = f"/ravi/ui/runs/{request.run_id}/"
    typed = {"text": EVIL, "result": EVIL, "value_0": EVIL, "arguments": EVIL if kind == "approval" else None}

    pages = [html_of(client.get(address)) for address in (INBOX, f"{INBOX}?tool={EVIL}", page_of(request))]
    waiting = html_of(client.get(run))
    pages.append(html_of(decide(client, request, EVIL, reason=EVIL, **typed), 400))
    action = "resolve" if kind == "uncertain" else "cancel"
    world.answer(request.pk, action, outcome="fail" if kind == "uncertain" else None, reason=SPOOF)
    pages += [html_of(client.get(address)) for address in (f"{INBOX}?status=all", page_of(request))]
    pages.append(html_of(decide(client, request, "skip", version=1, reason=EVIL), 409))

    assert [place for place, page in enumerate(pages) if not shows_as_text(page)] == []
    assert EVIL not in waiting and not set(HIDDEN) & set(waiting)
    assert EVIL not in html_of(client.get(f"{INBOX}{request.pk}/history/"))


def test_the_pages_for_several_hide_nothing_either(client: Any) -> None:
    request = spoofed()
    chosen = {"action": "approve_selected", "_selected_action": [str(request.pk)]}

    page = html_of(client.post(INBOX, chosen))
    done = client.post(
        f"{INBOX}bulk/", {"action": "approve", "seen": [f"{request.pk}:1"], "reason": SPOOF}, follow=True
    )

    assert shows_as_text(page) and shows_as_text(html_of(done))


def test_what_is_hidden_is_approved_and_changed_as_it_is(client: Any) -> None:
    """It is shown as JSON writes it, so it comes back as it was."""
    request = spoofed()
    html = html_of(client.get(page_of(request)))
    field = html.split('name="decision-arguments"')[1].split("</textarea>")[0].partition(">")[2]
    typed = unescape(field.strip())

    assert "Nothing was changed" in html_of(decide(client, request, "edit", arguments=typed), 400)
    assert decide(client, request, "approve", arguments=typed).status_code == 302


# ------------------------------------------------------------------------------------------------------- plain words


def test_approve_and_deny_come_first_and_the_other_ways_to_say_no_behind(client: Any) -> None:
    html = ours(html_of(client.get(page_of(ask(expires_in=3600)))))

    first, _, others = html[html.index('id="decision"') :].partition('<details class="ravi-no">')
    assert 'value="approve"' in first and 'value="deny"' in first and 'value="skip"' not in first
    assert "More ways to decline" in others and others.index('value="skip"') < others.index("</details>")
    assert "If nobody answers by " in words(html) and "the request is rejected" in words(html)
    hashed = html[: html.index("SHA-256")]
    assert hashed.rindex("<details") > hashed.rindex("</details>") if "</details>" in hashed else "<details" in hashed


def test_the_message_of_a_change_says_with_what(client: Any) -> None:
    request = invoice()
    decide(client, request, "edit", **named(request, customer="Bolt"))

    assert "Approved with changes: send_invoice (" in (told := words(html_of(client.get(INBOX))))
    assert "customer=Bolt" in told and "ACME" not in told


# ------------------------------------------------------------------------------------------- a field an argument


def test_each_plain_argument_has_a_field_and_the_others_are_json(client: Any) -> None:
    request = invoice()
    html = ours(html_of(client.get(page_of(request))))

    for name in SCHEMA["properties"].keys() - {"lines"}:
        (field,) = named(request, **{name: ""})
        assert f'<label for="id_decision-{field}">{name}' in html, name
    assert "Whom it goes to" in html and 'value="100.5"' in html
    rest = html.split('name="decision-arguments"')[1].split("</textarea>")[0]
    assert "lines" in rest and "customer" not in rest


def test_what_is_typed_has_the_type_of_its_argument(client: Any) -> None:
    for typed, changed in (
        ({"customer": " Bolt & Co "}, {"customer": " Bolt & Co "}),
        ({"amount": "90"}, {"amount": 90}),
        ({"amount": " -1.25e2 "}, None),
        ({"amount": "99.95"}, {"amount": 99.95}),
        ({"copies": "3"}, {"copies": 3}),
        ({"urgent": "true"}, {"urgent": True}),
        ({"currency": "1"}, {"currency": "USD"}),
        ({"note": "soon"}, {"note": "soon"}),
        ({"arguments": '{"lines": ["b"]}'}, {"lines": ["b"]}),
        ({"customer": "Bolt", "arguments": '{"lines": []}'}, {"customer": "Bolt", "lines": []}),
    ):
        with case(typed, changed):
            request = invoice()
            response = decide(client, request, "edit", **{"arguments": '{"lines": ["a"]}', **named(request, **typed)})
            if changed is None:
                assert "not valid for send_invoice" in html_of(response, 400)
                continue
            assert response.status_code == 302
            kept = answer_of(request)["arguments"]
            assert kept == {**ASKED, **changed}
            assert {name: type(value) for name, value in kept.items()} == {
                name: type(value) for name, value in {**ASKED, **changed}.items()
            }


def test_a_fault_is_told_at_its_field_and_what_was_typed_comes_back(client) -> None:
    for field, typed, complaint in (
        ("amount", "1.000,50", "Enter a number"),
        ("amount", "NaN", "Enter a number"),
        ("amount", "9" * 5000, "characters"),
        ("copies", "2.5", "Enter a whole number"),
        ("currency", "7", "Select a valid choice"),
        ("arguments", "{", "Invalid JSON"),
        ("arguments", '{"customer": "Evil"}', "has its own field"),
    ):
        with case(field, typed, complaint):
            request = invoice()
            asked = named(request, **{"customer": "Bolt & Co", field: typed})
            html = ours(html_of(decide(client, request, "edit", **asked), 400))
            (place,) = named(request, **{field: ""})
            note = html.split(f'id="decision-{place}-note"')[1].split("</div>")[0]
            assert complaint in note
            assert 'value="Bolt &amp; Co"' in html
            assert 'ravi-change" open' in html
            assert answer_of(request) is None


# ------------------------------------------------------------------------------------------------- no dead button


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"not_before": 60}, "suspended", "You can decide from"),
        ({"expires_at": -60}, "suspended", "The time to answer ended"),
        ({}, "failed", "The run is already failed"),
    ],
)
def test_buttons_that_would_be_refused_are_disabled_with_words(client, fields, status, said) -> None:
    request = ask()
    moments = {name: timezone.now() + timedelta(seconds=seconds) for name, seconds in fields.items()}
    HumanRequest.objects.filter(pk=request.pk).update(**moments)
    type(request.run).objects.filter(pk=request.run_id).update(status=status)

    html = ours(html_of(client.get(page_of(request))))

    form = html[html.index('id="decision"') :].split("</form>")[0]
    buttons = [part.split(">")[0] for part in form.split("<button")[2:]]  # the first decides nothing
    assert said in words(form)
    assert len(buttons) == 5 and all(" disabled" in button for button in buttons)
    for moment in moments.values():
        assert f"{timezone.localtime(moment):%H:%M:%S}" in form
    assert " disabled" not in ours(html_of(client.get(page_of(ask()))))


# ------------------------------------------------------------------------------------------------------- the list


def test_what_the_sites_own_rule_refuses_is_not_offered(settings, client, django_assert_max_num_queries) -> None:
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": lambda user, request: request.arguments["amount"] < 10}
    small, big = ask(arguments={"amount": 1}), ask(arguments={"amount": 100})

    def listed(query: str) -> set[Any]:
        with django_assert_max_num_queries(26):
            return {row.pk for row in client.get(f"{INBOX}{query}").context["cl"].result_list}

    assert "1 to answer" in words(html_of(client.get(INBOX)))
    assert "Approvals &amp; questions (1)" in words(html_of(client.get("/admin/")))
    assert listed("") == {small.pk, big.pk}
    assert listed("?mine=yes") == {small.pk}
    assert listed("?mine=no") == {big.pk}
    world.answer(small.pk, "deny")
    html = html_of(client.get(INBOX))
    assert "approve_selected" not in html and "No requests are waiting for you" in html


def test_an_odd_value_of_a_filter_is_no_fault() -> None:
    ask()
    client = logged_in(person("root", superuser=True))

    for name in ("tool", "agent", "risk", "status", "kind__exact", "mine", "age", "q", "o", "p"):
        for value in ("%00", "x%00y"):
            assert client.get(f"{INBOX}?{name}={value}", follow=True).status_code == 200, name
    for name in ("agent", "status__exact", "place", "q"):
        assert client.get(f"/admin/ravi/run/?{name}=%00", follow=True).status_code == 200, name
    for query in ("?risk=none", "?status=nonsense"):
        assert len(client.get(f"{INBOX}{query}").context["cl"].result_list) == 1, query


def test_the_badge_in_a_sites_own_base_is_as_the_docs_say(rf: Any) -> None:
    code = (ROOT / "docs/howto/inbox.md").read_text().split("```html\n")[-1].split("```")[0]

    html = Template(code).render(RequestContext(rf.get("/admin/"), {}))

    for part in (f'data-inbox="{INBOX}"', 'data-socket="/ws/ravi/requests/"', 'src="/static/ravi/requests.js"'):
        assert part in html


def test_the_shared_pages_know_no_admin() -> None:
    for file in (ROOT / "ravi_django/pages").glob("*.py"):
        assert "contrib.admin" not in file.read_text(), file
