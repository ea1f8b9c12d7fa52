"""E-mails about requests: one a person and level, whatever dies, fails or comes at once; none where it is off."""

import logging
import smtplib
from copy import copy

import django
import pytest
from django.contrib.auth.models import Group
from django.core import mail as django_mail
from django.core.mail.backends.locmem import EmailBackend
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from ravi_django import tasks
from ravi_django.checks import check_request_email
from ravi_django.kernel import Addressees
from ravi_django.models import HumanRequest
from tests.support import world
from tests.support.asked import approval_of, asked_by
from tests.support.cases import case
from tests.support.patience import BOUND_S
from tests.support.runs import (
    beside,
    code,
    drive,
    in_background,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    until,
)
from tests.support.world import LINKS_TRIES

pytestmark = pytest.mark.django_db(transaction=True)

FIRST, SECOND = "group:finance", "group:directors"


class Killed(BaseException):
    """SIGKILL: nothing after it happens."""


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


@pytest.fixture
def smtp(monkeypatch):
    """`smtp.fails` has the errors of the next e-mails, in order; None: that one is sent."""

    class Server(EmailBackend):
        fails = []
        attempts = 0

        def send_messages(self, messages):
            Server.attempts += 1
            if Server.fails and (error := Server.fails.pop(0)) is not None:
                raise error
            return super().send_messages(messages)

    world.patch(monkeypatch, "mail_site_connection", Server)
    return Server


def sent_to():
    return sorted(address for letter in django_mail.outbox for address in letter.to)


@pytest.fixture
def wanted(person):
    """A request to approve by these people of finance, `eve` of the directors beside them."""

    def make(*names, to=FIRST):
        person("eve", "directors")
        for name in names:
            person(name, "finance")
        return approval_of(make_run(), to)

    return make


def escalate(request):
    """As the sweep does when the first step has had its time."""
    HumanRequest.objects.filter(id=request.id).update(escalates_at=request.created_at)
    assert world.escalate(request.id)
    request.refresh_from_db()


# ----------------------------------------------------------------------------------------------------- whom


def test_everybody_who_is_meant_gets_one_e_mail_of_their_own(person, wanted):
    person("carl", "finance", email="")
    person("dan", "finance", is_active=False)
    request = wanted("ann", "bob")

    assert world.mail_send(request.id) == 2

    assert sent_to() == ["ann@example.com", "bob@example.com"]
    assert all(len(letter.to) == 1 and not letter.cc and not letter.bcc for letter in django_mail.outbox)
    request.refresh_from_db()
    assert (request.notified, request.version) == (0, 1)
    HumanRequest.objects.filter(id=request.id).update(notified=-1)  # as if that had been lost
    assert (world.mail_send(request.id), len(sent_to())) == (0, 2)


def test_a_question_goes_to_the_owner_and_with_four_eyes_an_approval_does_not(person):
    ann, _ = person("ann", "finance"), person("boss", "finance", is_staff=True)
    run = make_run(owner=ann)
    question, approval = asked_by(run), approval_of(run)
    four_eyes = approval_of(run, Addressees.of({"steps": [{"to": FIRST}], "four_eyes": True}))
    world.mail_send(four_eyes.id)
    assert sent_to() == ["boss@example.com"]

    for request, address in ((question, "ann@example.com"), (approval, "boss@example.com")):
        django_mail.outbox.clear()
        world.mail_send(request.id)
        assert sent_to() == [address]


def test_after_an_escalation_the_next_ones_are_written_to(person, wanted):
    person("dan", "directors", "finance")
    request = wanted("ann", to=[(FIRST, 3600), SECOND])
    world.mail_send(request.id)

    escalate(request)
    world.mail_send(request.id)

    assert sent_to() == [f"{name}@example.com" for name in ("ann", "dan", "dan", "eve")]
    request.refresh_from_db()
    assert request.notified == 1


def test_whom_it_is_reassigned_to_is_written_to_and_who_gets_it_back_again(person, wanted):
    person("dan", "directors", "finance")
    request = wanted("ann")
    world.mail_send(request.id)

    for to in (SECOND, FIRST):
        world.reassign(request.id, to)
        assert (world.mail_send(request.id), world.links_unwritten(10)) == (2, [])

    assert sent_to() == [f"{name}@example.com" for name in ("ann", "ann", "dan", "dan", "dan", "eve")]


@pytest.mark.parametrize("change", ["answered", "escalated"])
def test_nobody_is_written_to_about_what_has_changed_since_it_was_read(wanted, django_user_model, change):
    request = wanted("ann", to=[(FIRST, 3600), SECOND])
    seen = copy(request)

    if change == "answered":
        world.answer(request.id, "deny")
    else:
        escalate(request)

    assert not world.claim_mail(seen, django_user_model.objects.get(username="ann"))


def test_a_retried_run_has_everybody_written_to_again(person, clock):
    fails = [True]
    person("ann", "finance"), person("eve", "directors")
    code(beside(lambda ctx: ctx.ask_human("Which?", to=[(FIRST, 3600), SECOND]), fails))
    run = drive(make_run())
    request = HumanRequest.objects.get()
    world.mail_send(request.id)
    clock.advance(3601)
    assert world.escalate(request.id)
    world.mail_send(request.id)
    world.send_signal(run.id, "go", None)
    assert drive(run).status == "failed"
    request.refresh_from_db()
    assert request.status == "cancelled"
    fails.clear()

    world.store_retry(run.id)
    world.mail_send(request.id)

    assert sent_to() == ["ann@example.com", "ann@example.com", "eve@example.com"]
    clock.advance(3601)
    assert world.escalate(request.id)
    world.mail_send(request.id)
    assert sent_to() == [f"{name}@example.com" for name in ("ann", "ann", "eve", "eve")]


@pytest.mark.parametrize("names", [("ann", "bob"), ("ann",)])
def test_who_is_asked_no_more_is_not_written_to_and_who_is_asked_then_is(wanted, smtp, monkeypatch, names):
    """It is reassigned while the first of the e-mails goes out, or the last."""
    request = wanted(*names)
    send = smtp.send_messages

    def reassigning(self, messages):
        monkeypatch.setattr(smtp, "send_messages", send)
        world.reassign(request.id, SECOND)
        return send(self, messages)

    monkeypatch.setattr(smtp, "send_messages", reassigning)

    assert world.mail_send(request.id) == 1

    assert sent_to() == ["ann@example.com"]
    assert world.links_unwritten(10) == [request.id]  # eve has to be written to
    world.mail_send(request.id)
    assert sent_to() == ["ann@example.com", "eve@example.com"]
    assert world.links_unwritten(10) == []


def test_about_what_is_over_and_where_nobody_is_meant_nobody_is_written_to(wanted):
    request = wanted("ann")
    for ended in ("answered", "cancelled", "expired"):
        HumanRequest.objects.filter(id=request.id).update(status=ended)
        with case(ended):
            assert (world.mail_send(request.id), sent_to(), world.links_unwritten(10)) == (0, [], [])

    to_nobody = approval_of(make_run(), "group:absent")
    assert world.links_unwritten(10) == [to_nobody.id]
    assert (world.mail_send(to_nobody.id), sent_to(), world.links_unwritten(10)) == (0, [], [])


def test_a_hook_of_the_site_that_fails_is_logged_and_holds_up_nobody(wanted, settings, caplog):
    def fail(user, request):
        raise RuntimeError("no such table")

    request = wanted("ann")
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": fail}

    assert (world.mail_send(request.id), sent_to(), world.links_unwritten(10)) == (0, [], [])
    assert caplog.records


# ------------------------------------------------------------------------------------------------------ off


def test_a_site_that_has_it_off_pays_nothing(wanted, settings, published):
    settings.RAVI = {**settings.RAVI, "REQUEST_EMAIL": None}
    request = wanted("ann")

    with CaptureQueriesContext(connection) as queries:
        world.on_request(HumanRequest, request)
        assert (world.mail_sweep(), world.mail_send(request.id)) == (0, 0)

    assert (len(queries), published, sent_to()) == (0, [], [])


# --------------------------------------------------------------------------------------------- hints, sweep


def test_opening_escalating_and_reassigning_send_a_hint_once_they_have_committed(
    wanted, published, monkeypatch, caplog
):
    request = wanted("ann", to=[(FIRST, 3600), SECOND])
    escalate(request)
    world.reassign(request.id, "user:ann")
    world.answer(request.id, "deny")

    hints = [hint for hint in published if hint[0] == "ravi.mail_request"]
    assert hints == [("ravi.mail_request", str(request.id))] * 3
    assert sent_to() == []  # by the task, not by whoever has opened it
    world.patch(monkeypatch, "dispatch_publish", lambda task, *args: 1 / 0)
    request = approval_of(make_run(), FIRST)
    assert HumanRequest.objects.filter(id=request.id).exists(), "a broker that is away harms nobody"
    assert "division by zero" in caplog.text


def test_the_sweep_hints_so_many_that_no_hint_has_reached_and_the_task_sends_them(wanted, published, monkeypatch):
    world.mail_send(wanted("ann").id)
    missed = approval_of(make_run(), FIRST)
    published.clear()

    world.sweeper_sweep(lambda run_ids: None)

    assert published == [("ravi.mail_request", str(missed.id))]
    tasks.mail_request(published[0][1])
    assert sent_to() == ["ann@example.com"] * 2
    world.patch(monkeypatch, "MAIL_BATCH", 3)
    ids = [str(approval_of(make_run(), FIRST).id) for _ in range(5)]
    published.clear()
    assert world.mail_sweep() == 3
    assert [name for _, name in published] == ids[:3]


def test_without_a_broker_a_thread_of_its_own_sends(person, settings, published):
    settings.RAVI = {**settings.RAVI, "ENGINE": "inline"}
    person("ann", "finance")

    for _ in range(3):
        approval_of(make_run(), FIRST)

    until(lambda: len(sent_to()) == 3)
    assert published == []


# ------------------------------------------------------------------------------------------ deaths and faults


@pytest.mark.parametrize(
    ("step", "sent_later", "sent"),
    [
        ("claim_mail", 2, ["ann@example.com", "bob@example.com"]),
        ("mail_letter_to", 1, ["bob@example.com"]),  # between the claim and the e-mail: that one is lost, no other
        ("mark_written", 0, ["ann@example.com", "bob@example.com"]),
    ],
)
def test_a_sender_that_is_killed_leaves_the_others_e_mails_and_sends_none_twice(
    wanted, monkeypatch, step, sent_later, sent
):
    def kill(*args):
        raise Killed

    request = wanted("ann", "bob")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        world.patch(patch, step, kill)
        world.mail_send(request.id)

    assert world.links_unwritten(10) == [request.id]
    assert world.mail_send(request.id) == sent_later
    assert (sent_to(), world.links_unwritten(10)) == (sent, [])


@on_postgresql
def test_of_two_that_claim_the_same_e_mail_at_once_one_may(person):
    """The second waits for the first one's commit, and must look again."""
    ann = person("ann", "finance")
    request = approval_of(make_run(), FIRST)

    with transaction.atomic():
        assert world.claim_mail(request, ann)
        second = in_background(world.claim_mail, request, ann)
        until(somebody_waits_for_a_lock)

    assert second.result(BOUND_S) is False


def test_a_refused_address_is_tried_again_and_holds_up_nobody(wanted, smtp, clock, caplog):
    request = wanted("ann", "bob")
    smtp.fails = [smtplib.SMTPRecipientsRefused({"ann@example.com": (450, b"later")})]

    assert world.mail_send(request.id) == 1

    assert sent_to() == ["bob@example.com"]
    assert world.links_unwritten(10) == []  # not yet: a minute
    assert world.mail_send(request.id) == 0
    clock.advance(61)
    assert world.links_unwritten(10) == [request.id]
    assert world.mail_send(request.id) == 1
    assert (sent_to(), world.links_unwritten(10)) == (["ann@example.com", "bob@example.com"], [])


def test_an_e_mail_that_can_never_be_sent_is_given_up(wanted, smtp, clock, caplog):
    request = wanted("ann")
    smtp.fails = [smtplib.SMTPRecipientsRefused({"ann@example.com": (550, b"unknown")}) for _ in range(99)]

    for _ in range(20):
        clock.advance(4 * 3600)
        world.mail_send(request.id)

    assert smtp.attempts == LINKS_TRIES
    assert world.links_unwritten(10) == []
    assert "it is given up" in caplog.text
    assert [record.levelno for record in caplog.records if "given up" in record.getMessage()] == [logging.ERROR]


def test_a_server_that_is_away_is_left_alone_for_a_while_and_costs_no_try_where_it_cannot_be_reached(
    wanted, smtp, clock, monkeypatch
):
    def refuse(self):
        raise ConnectionRefusedError("port 25")

    request = wanted("ann", "bob", "carl")
    with monkeypatch.context() as patch:
        patch.setattr(smtp, "open", refuse)
        assert world.mail_send(request.id) == 0
    assert HumanRequest.objects.get().mails == {}
    world.patch(monkeypatch, "mail_rests_until", 0.0)
    assert world.links_unwritten(10) == [request.id]
    smtp.fails = [smtplib.SMTPServerDisconnected("gone")]

    assert world.mail_send(request.id) == 0
    assert world.mail_send(request.id) == 0

    assert smtp.attempts == 1
    world.patch(monkeypatch, "mail_rests_until", 0.0)
    assert world.mail_send(request.id) == 2  # the first one's has to wait for its minute
    clock.advance(61)
    assert world.mail_send(request.id) == 1
    assert sent_to() == ["ann@example.com", "bob@example.com", "carl@example.com"]


def test_while_one_sender_waits_to_try_again_another_does_not_take_it_for_done(wanted, smtp, clock, monkeypatch):
    """The other comes while the e-mail is claimed, and finds nothing left to send."""
    request = wanted("ann")
    send = smtp.send_messages

    def meanwhile(self, messages):
        world.mail_send(request.id)
        assert HumanRequest.objects.get().notified == 0
        raise smtplib.SMTPRecipientsRefused({})

    monkeypatch.setattr(smtp, "send_messages", meanwhile)
    world.mail_send(request.id)

    monkeypatch.setattr(smtp, "send_messages", send)
    clock.advance(61)
    assert world.links_unwritten(10) == [request.id]
    assert world.mail_send(request.id) == 1


def test_where_the_urls_are_not_mounted_nothing_is_claimed(wanted, settings, caplog):
    request = wanted("ann")
    settings.ROOT_URLCONF = "django.contrib.auth.urls"

    assert world.mail_send(request.id) == 0

    assert "'ravi' is not a registered namespace" in caplog.text
    assert HumanRequest.objects.get().mails == {}
    assert world.links_unwritten(10) == [request.id]


def test_an_smtp_server_that_says_nothing_is_not_waited_for_for_ever(settings):
    backend = "django.core.mail.backends.smtp.EmailBackend"
    for timeout, used in ((None, world.SMTP_TIMEOUT_S), (3, 3)):
        if django.VERSION >= (6, 1):
            settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": {"host": "localhost", "timeout": timeout}}}
        else:
            settings.EMAIL_BACKEND, settings.EMAIL_TIMEOUT = backend, timeout

        assert world.mail_connection().timeout == used


# ------------------------------------------------------------------------------------------------- manage.py check


def test_settings_that_cannot_be_right_are_named(settings):
    def found(**changed):
        settings.RAVI = {**settings.RAVI, "REQUEST_EMAIL": None, **changed}
        return [message.id for message in check_request_email()]

    for good in (None, "https://example.com", "http://127.0.0.1:8000/", "https://example.com/site"):
        with case(good):
            assert found(REQUEST_EMAIL=good) == []
    no_host = ["https://", "http://[x"]
    for bad in ("example.com", "", "ann@x.org", "ftp://x.org", True, ["https://x.org"], "https://x/?a=b", *no_host):
        with case(bad):
            assert found(REQUEST_EMAIL=bad) == ["ravi.E015"]

    settings.RAVI = {**settings.RAVI, "REQUEST_LINK_S": 60}
    settings.ROOT_URLCONF = "django.contrib.auth.urls"
    assert found() == []
    assert found(REQUEST_EMAIL="https://example.com") == ["ravi.W006"], "the page is not mounted"
