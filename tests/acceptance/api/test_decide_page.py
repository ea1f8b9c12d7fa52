"""The page behind an e-mail's link: it shows to one person, and a POST decides once."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.signing import TimestampSigner
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ravi_django.kernel import Addressees
from ravi_django.models import HumanRequest, Run, Status, Turn
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.cases import case
from tests.support.inbox import EVIL
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def person(django_user_model: Any) -> Any:
    def make(name: str, *groups: str, **fields: Any) -> Any:
        user = django_user_model.objects.create_user(name, f"{name}@example.com", **fields)
        user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
        return user

    return make


@pytest.fixture
def ann(person: Any) -> Any:
    return person("ann", "finance")


@pytest.fixture
def pay(ann: Any) -> HumanRequest:
    return approval_of(make_run(), "group:finance")


def link_to(request: HumanRequest, user: Any) -> str:
    """The address in the e-mail to that person."""
    request.refresh_from_db()
    return reverse("ravi:decide", args=[world.token_of(request, user)])


def browser(user: Any = None, **options: Any) -> Client:
    client = Client(**options)
    if user is not None:
        client.force_login(user)
    return client


def press(client: Client, address: str, action: str = "approve", version: int = 1, **typed: Any) -> Any:
    return client.post(address, {"action": action, "version": version, **typed})


def text_of(response: Any) -> str:
    return str(response.content.decode())


def state(request: HumanRequest) -> tuple[str, Any]:
    request.refresh_from_db()
    return request.status, request.answer and request.answer["action"]


# --------------------------------------------------------------------------------------------- who comes in


def test_it_shows_what_is_asked_and_what_would_come_of_it(ann: Any, pay: HumanRequest) -> None:
    response = browser(ann).get(link_to(pay, ann))

    page = text_of(response)
    assert response.status_code == 200
    facts = ("Pay?", "Arguments of pay", "&quot;amount&quot;: 100", "risk: high", "test/code", "Approve", "Reject")
    for words in facts:
        assert words in page, words
    values = re.findall(r'name="action" value="([^"]+)"', page)
    assert values == ["approve", "deny", "edit", "skip", "cancel"]
    assert f'name="version" value="{pay.version}"' in page


def test_nothing_but_a_post_decides(ann: Any, pay: HumanRequest) -> None:
    address, client = link_to(pay, ann), browser(ann)

    for method in ("get", "head"):
        for query in ("", "?action=approve&version=1"):
            assert getattr(client, method)(address + query).status_code == 200, (method, query)
    for method in ("put", "patch", "delete", "options", "trace"):
        for one in (client, browser(ann, enforce_csrf_checks=True)):
            assert getattr(one, method)(address).status_code == 405, method
    assert state(pay) == ("pending", None)
    response = press(client, address)

    assert (response.status_code, response["Location"]) == (303, address)
    assert state(pay) == ("answered", "approve")


def test_a_visitor_is_sent_to_log_in(settings: Any, ann: Any, pay: HumanRequest) -> None:
    address, client = link_to(pay, ann), browser(ann)
    ann.is_active = False
    ann.save()
    logins = {
        **{"login": "/accounts/login/", "/accounts/login/": "/accounts/login/"},
        "https://sso.example.com/in": "https://sso.example.com/in",
        **dict.fromkeys(("/nothing/here/", "/ravi/nothing/here/", "no-such-name"), "/admin/login/"),
    }

    for given, found in logins.items():
        settings.LOGIN_URL = given
        for one in (client, browser()):
            for response in (one.get(address), press(one, address)):
                assert response.status_code == 302
                assert response["Location"].startswith(f"{found}?next={address}"), given
    assert state(pay) == ("pending", None)


def test_somebody_elses_link_is_not_there(ann: Any, pay: HumanRequest, person: Any) -> None:
    address = link_to(pay, ann)

    for other in (person("bob", "finance"), person("root", "finance", is_superuser=True, is_staff=True)):
        for response in (browser(other).get(address), press(browser(other), address)):
            assert (response.status_code, "pay" in text_of(response).lower()) == (404, False), other
    assert state(pay) == ("pending", None)


def forged(link_id: str) -> list[str]:
    """Tokens that were never made here."""
    return [
        link_id,
        f"{link_id}.aaaaaa.bbbbbb",
        TimestampSigner(key="another key", salt="ravi.request_link", sep=".").sign(link_id),
        TimestampSigner(salt="another salt", sep=".").sign(link_id),
        TimestampSigner(salt="ravi.request_link", sep=".").sign("no-id"),
        TimestampSigner(salt="ravi.request_link", sep=".").sign("0" * 32),
    ]


def test_a_token_that_was_tampered_with_is_not_there(ann: Any, pay: HumanRequest) -> None:
    good = link_to(pay, ann).rstrip("/").rpartition("/")[2]
    client = browser(ann)

    for token in [*forged(pay.id.hex), good[:-1], good.upper(), good.replace(good[0], "f", 1) + "x"]:
        address = reverse("ravi:decide", args=[token])
        assert client.get(address).status_code == 404, token
        assert press(client, address).status_code == 404, token

    assert state(pay) == ("pending", None)


def test_a_link_is_good_for_some_time_only(ann: Any, pay: HumanRequest, settings: Any) -> None:
    client, address = browser(ann), link_to(pay, ann)
    settings.RAVI = {**settings.RAVI, "REQUEST_LINK_S": -1}

    assert client.get(address).status_code == press(client, address).status_code == 410

    assert "expired" in text_of(client.get(address))
    assert state(pay) == ("pending", None)


# ------------------------------------------------------------------------------------------------- deciding


def test_the_logged_in_user_has_decided_whatever_is_posted(ann: Any, pay: HumanRequest, person: Any) -> None:
    boss = person("boss", is_superuser=True)

    press(browser(ann), link_to(pay, ann), "deny", reason="Too much.", by=boss.pk, user=boss.pk, answered_by="boss")

    pay.refresh_from_db()
    assert (pay.answered_by, pay.answer["by"], pay.answer["reason"]) == (ann, "ann", "Too much.")


def test_the_link_of_an_answered_request_shows_the_decision_and_decides_no_more(ann: Any, pay: HumanRequest) -> None:
    client, address = browser(ann), link_to(pay, ann)
    decided = client.post(address, {"action": "deny", "version": 1, "reason": "Too much."}, follow=True)

    page = text_of(client.get(address))
    again = press(client, address, version=2)

    assert "Your decision was recorded: rejected: pay (" in text_of(decided)
    assert "Outcome" in page and "Too much." in page and 'name="action"' not in page
    assert again.status_code == 409
    assert state(pay) == ("answered", "deny")


def test_a_conflict_is_told_and_what_was_typed_stays(ann: Any, pay: HumanRequest, person: Any) -> None:
    address, client = link_to(pay, ann), browser(ann)
    HumanRequest.objects.update(version=2)
    stale = press(client, address, version=1, reason="As agreed.")
    assert stale.status_code == 409
    assert "As agreed." in text_of(stale) and 'name="version" value="2"' in text_of(stale)
    HumanRequest.objects.update(version=1, expires_at=timezone.now() - timedelta(seconds=1))
    assert (press(client, address).status_code, client.get(address).status_code) == (409, 200)
    HumanRequest.objects.update(expires_at=None)
    Run.objects.update(status=Status.FAILED)
    assert press(client, address).status_code == 409
    assert "already failed" in text_of(client.get(address)) and state(pay) == ("pending", None)
    Run.objects.update(status=Status.SUSPENDED)
    world.answer(pay.id, "deny", reason="No.", by=person("bob", "finance"))

    response = press(client, address)

    assert response.status_code == 409
    assert "bob" in text_of(response) and "No." in text_of(response)
    assert state(pay) == ("answered", "deny")


def test_a_post_of_another_site_is_refused_in_the_pages_own_words(ann: Any, pay: HumanRequest, settings: Any) -> None:
    address, client = link_to(pay, ann), browser(ann, enforce_csrf_checks=True)
    token = re.findall(r'csrfmiddlewaretoken" value="([^"]+)"', text_of(client.get(address)))[0]
    with_csrf = settings.MIDDLEWARE

    for middleware in ([name for name in with_csrf if "csrf" not in name], with_csrf):
        settings.MIDDLEWARE = middleware
        refused = press(client, address)
        assert refused.status_code == 403
    assert "Open the link again" in text_of(refused) and "CSRF" not in text_of(refused)
    assert state(pay) == ("pending", None)
    assert press(client, address, csrfmiddlewaretoken=token).status_code == 303


# ------------------------------------------------------------------------------- when the right has gone since


def test_who_has_left_the_group_decides_and_sees_nothing(ann: Any, pay: HumanRequest, monkeypatch: Any) -> None:
    address, client, answer = link_to(pay, ann), browser(ann), world.answer

    def answering(*args: Any, **options: Any) -> Any:  # what the page has found out before does not count
        ann.groups.clear()
        return answer(*args, **options)

    world.patch(monkeypatch, "answer", answering)
    assert press(client, address).status_code == 403
    ann.groups.clear()
    for response in (client.get(address), press(client, address)):
        assert response.status_code == 403
    assert "ACME" not in text_of(response)
    assert state(pay) == ("pending", None)


def test_with_four_eyes_the_owner_reads_and_decides_nothing(ann: Any) -> None:
    to = Addressees.of({"steps": [{"to": "group:finance"}], "four_eyes": True})
    request = approval_of(make_run(owner=ann), to)
    address, client = link_to(request, ann), browser(ann)

    page, posted = client.get(address), press(client, address)

    assert (page.status_code, posted.status_code) == (403, 403)
    assert "four eyes" in text_of(page) and "ACME" in text_of(page) and 'name="action"' not in text_of(page)
    assert state(request) == ("pending", None)


def test_after_an_escalation_the_first_levels_link_decides_nothing(person: Any) -> None:
    """Not even for somebody whom the next level means as well."""
    eve, bob = person("eve", "finance", "directors"), person("bob", "finance")
    request = approval_of(make_run(), [("group:finance", 3600), "group:directors"])
    hers, his = link_to(request, eve), link_to(request, bob)
    HumanRequest.objects.update(escalates_at=request.created_at)
    assert world.escalate(request.id)
    request.refresh_from_db()

    shown, posted = browser(eve).get(hers), press(browser(eve), hers, version=request.version)

    assert (shown.status_code, posted.status_code) == (410, 410)
    assert "This request is now assigned to others" in text_of(shown) and 'name="action"' not in text_of(shown)
    assert press(browser(bob), his, version=request.version).status_code == 403
    assert state(request) == ("pending", None)
    new = link_to(request, eve)
    assert press(browser(eve), new, version=request.version).status_code == 303


def test_who_was_asked_before_it_was_reassigned_decides_nothing(ann: Any, pay: HumanRequest, person: Any) -> None:
    """Not even somebody whom the new address means as well: the link was for what was asked before."""
    eve = person("eve", "finance", "directors")
    old = {user: link_to(pay, user) for user in (ann, eve)}
    world.reassign(pay.id, "group:directors")

    for user, address in old.items():
        assert "may be assigned to somebody else now" in text_of(browser(user).get(address))
        assert press(browser(user), address, version=2).status_code == 404
    assert state(pay) == ("pending", None)
    pay.refresh_from_db()
    assert press(browser(eve), link_to(pay, eve), version=2).status_code == 303


# ------------------------------------------------------------------------------------------- what can be said


def test_what_is_typed_reaches_the_answer_of_each_kind(ann: Any, person: Any) -> None:
    """The form itself is that of the admin: tests/acceptance/admin/test_admin_decide.py."""
    staff, run, other = person("staff", is_staff=True), make_run(owner=ann), make_run()
    question, several = asked_by(run, choices=["red"]), asked_by(run, Kind.INPUT, details={"questions": {"a": "A?"}})
    edited, sticky = (approval_of(other, "group:finance", details={}) for _ in range(2))
    effect = asked_by(other, Kind.UNCERTAIN, tool="pay")
    typed = '{\r\n "to": "ACME",\r\n "amount": 50}'  # as a browser sends it
    for asked, action, said, kept in (
        (question, "choose:0", {}, {"text": "red"}),
        (several, "answer", {"value_0": "Graz"}, {"values": {"a": "Graz"}}),
        (edited, "edit", {"arguments": typed}, {"arguments": {"to": "ACME", "amount": 50}}),
        (sticky, "deny", {"sticky": "1"}, {"sticky": True}),
        (effect, "happened", {"result": "paid"}, {"outcome": "happened", "result": "paid"}),
    ):
        with case(asked.kind, action):
            user = staff if asked == effect else ann
            address, client = link_to(asked, user), browser(user)
            assert press(client, address, "answer").status_code == 400
            assert state(asked) == ("pending", None)

            assert press(client, address, action, **said).status_code == 303

            asked.refresh_from_db()
            assert asked.answer == {**asked.answer, **kept}


# ------------------------------------------------------------------------------------------------- the page


def test_html_is_shown_as_text_everywhere_and_nothing_is_hidden(ann: Any) -> None:
    run, spoof, visible = make_run(owner=ann), "AC\u202e001 fo\u202cME", r"AC\u202e001 fo\u202cME"
    evil = f"{EVIL}{spoof}"
    schema = {"properties": {evil: {"type": "string", "description": evil}}}
    details = {"context": evil, "schema": schema}
    questions = {"context": evil, "questions": {evil: evil}}
    for request in (
        approval_of(run, "group:finance", text=evil, tool=EVIL, arguments={evil: evil}, risk="high", details=details),
        asked_by(run, text=evil, choices=[evil, f'" autofocus onfocus={evil}'], details={"context": evil}),
        asked_by(run, Kind.INPUT, text=evil, details=questions),
    ):
        address, client = link_to(request, ann), browser(ann)
        typed = {"reason": f"</textarea>{EVIL}", "text": f"</textarea>{EVIL}", "choice": EVIL, "arguments": EVIL}
        pages = [client.get(address), press(client, address, EVIL, **typed), press(client, address, "approve", **typed)]
        world.answer(request.id, "cancel", reason=evil)
        pages.append(client.get(address))

        for page in map(text_of, pages):
            assert "<script" not in page and "onfocus=<" not in page and "&lt;script&gt;" in page
            assert visible in page and "\u202e" not in page


def test_its_headers(ann: Any, pay: HumanRequest) -> None:
    address = link_to(pay, ann)
    for client, wanted in ((browser(ann), 200), (browser(), 302)):
        response = client.get(address)
        assert response.status_code == wanted
        assert "no-store" in response["Cache-Control"]
        assert response["Referrer-Policy"] == "same-origin"
        assert response["X-Frame-Options"] == "DENY"
        assert "noindex" in response["X-Robots-Tag"]

    page = browser(ann).get(address)
    (nonce,) = re.findall(r"style-src 'nonce-([^']+)'", page["Content-Security-Policy"])
    assert f'<style nonce="{nonce}">' in text_of(page)
    assert "<script" not in text_of(page) and "style=" not in text_of(page)
    assert not re.findall(r'(?:src|href)="', text_of(page))


def test_it_costs_few_queries(ann: Any, pay: HumanRequest, django_assert_max_num_queries: Any) -> None:
    address, client = link_to(pay, ann), browser(ann)

    with django_assert_max_num_queries(12):
        client.get(address)


# ------------------------------------------------------------------------------------------ words, and other ways in


def test_it_says_for_whom_it_is_what_was_said_and_what_it_has_cost(ann: Any, person: Any) -> None:
    run = make_run(owner=person("olga"), cost="0.0421", input_tokens=5)
    for place in range(12):
        said = [{"type": "text", "text": f"Turn {place} {EVIL} " + "x" * 5000}]
        Turn.objects.create(session=run.session, run=run, position=place, index=place, role="user", content=said)
    request = approval_of(run, "group:finance")

    page = text_of(browser(ann).get(link_to(request, ann)))

    assert "for olga" in page and "$0.0421" in page
    assert "Turn 11 " in page and "Turn 6 " in page and "Turn 5 " not in page
    assert EVIL not in page and len(page) < 40_000
