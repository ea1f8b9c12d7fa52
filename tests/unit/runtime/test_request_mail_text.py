"""What an e-mail about a request says."""

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Group
from django.core import mail as django_mail

from ravi_django.models import HumanRequest
from tests.support import world
from tests.support.asked import Kind, approval_of, asked_by
from tests.support.cases import case
from tests.support.runs import (
    make_run,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def published(monkeypatch, settings):
    """What is sent to the broker: the tasks' names and arguments."""
    found = []
    settings.RAVI = {**settings.RAVI, "ENGINE": "celery", "REQUEST_EMAIL": "https://example.com/"}
    world.patch(monkeypatch, "dispatch_publish", lambda *call: found.append(call))
    world.patch(monkeypatch, "mail_rests_until", 0.0)
    return found


@pytest.fixture
def person(django_user_model):
    def make(name, *groups, email=None, **fields):
        user = django_user_model.objects.create_user(name, f"{name}@example.com" if email is None else email, **fields)
        user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
        return user

    return make


def test_the_letter_says_what_is_asked_and_has_the_link_of_that_person(person, settings):
    settings.DEFAULT_FROM_EMAIL = "agents@example.com"
    ann = person("ann", "finance")
    request = approval_of(make_run(), "group:finance")

    world.mail_send(request.id)

    (letter,) = django_mail.outbox
    assert (letter.subject, letter.from_email) == ("Approval needed: pay", "agents@example.com")
    assert letter.extra_headers["Auto-Submitted"] == "auto-generated"
    assert "Pay?" in letter.body and '"amount": 100' in letter.body and "risk high" in letter.body
    (address,) = [line for line in letter.body.splitlines() if line.startswith("https://")]
    assert address.startswith("https://example.com/ravi/decide/")
    assert world.parts_of(address.rstrip("/").rpartition("/")[2])[:3] == [request.id.hex, str(ann.pk), 0]
    html, kind = letter.alternatives[0]
    assert kind == "text/html" and address in html


def test_a_subject_says_what_is_wanted_and_has_no_line_break(person):
    person("ann")
    request = asked_by(make_run(), to="user:ann")
    for break_ in ("\n", "\r\n", "\r", "\x0b", "\x1c", "\x85", "\u2028", "\0"):
        request.text = f"Which?{break_}Bcc: eve@example.com"
        with case(break_):
            assert world.title_of(request) == "Question: Which? Bcc: eve@example.com"
    assert world.title_of(asked_by(make_run(), Kind.UNCERTAIN, "staff", tool="pay")) == "Result unknown: pay"
    assert world.title_of(approval_of(make_run(), tool=world.TOP_UP)) == "More budget needed"


def test_what_is_long_is_shortened_and_what_is_secret_is_left_out(person):
    person("ann")
    key = "sk-" + "a1B2" * 10
    request = approval_of(make_run(), "user:ann", text=f"{key} " + "x" * 9_000, arguments={"note": "y" * 9_000})

    world.mail_send(request.id)

    (letter,) = django_mail.outbox
    for body in (letter.body, letter.alternatives[0][0]):
        assert len(body) < 6_000 and "…" in body and key not in body
    assert len(letter.subject) <= world.MOST_SUBJECT


def test_it_says_for_whom_and_what_it_has_cost_hides_nothing_and_has_html_as_text(person):
    spoof, shown = "AC\u202e001 fo\u202cME", r"AC\u202e001 fo\u202cME"
    evil = "<script>alert('evil')</script>"
    person("ann", "finance")
    run = make_run(owner=person("olga"), cost="0.0421", input_tokens=5)
    asked = {"text": f"{spoof} {evil}", "tool": evil, "arguments": {"to": spoof, evil: evil}}
    world.mail_send(approval_of(run, "group:finance", **asked).id)

    (letter,) = django_mail.outbox
    html = letter.alternatives[0].content
    for body in (letter.body, html):
        assert "for olga" in body and "$0.0421" in body and "If nobody answers" not in body
        assert body.count(shown) == 2 and "\u202e" not in body
    assert evil in letter.body and "<script" not in html


def test_times_are_those_of_the_page_with_the_name_of_the_zone(person, settings, client):
    settings.LANGUAGE_CODE, settings.TIME_ZONE = "de", "Europe/Berlin"
    ann = person("ann")
    request = asked_by(make_run(owner=ann), to="owner")
    HumanRequest.objects.update(expires_at=datetime(2030, 1, 31, 8, 58, 12, tzinfo=UTC))

    world.mail_send(request.id)

    body = str(django_mail.outbox[0].body)
    assert "Wenn bis 31.01.2030 09:58:12 CET niemand antwortet" in body
    client.force_login(ann)
    page = client.get(
        next(word for word in body.split() if word.startswith("https://")).removeprefix("https://example.com")
    )
    assert "31.01.2030 09:58:12" in page.content.decode()
