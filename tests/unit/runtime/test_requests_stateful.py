"""Requests to people against a model of them, under any order of what people, workers and time can do to a few.

Each belongs to a run that waits for it. Races of two connections have tests of their own; here it is one step after
the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ravi_django.kernel import Addressees, ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from ravi_django.models import AuditRecord, Delegation, HumanRequest, Session, Status
from ravi_django.signals import request_answered, request_changed, request_closed, request_opened
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.cases import sizes
from tests.support.requests_model import ARGUMENTS, GROUPS, NAMES, Asked, People, check, read, recorded
from tests.support.runs import leased, make_run, on_postgresql
from tests.support.world import Entry, Lease, cancel, retry

Kind = HumanRequest.Kind
SIGNALS = {"opened": request_opened, "answered": request_answered, "closed": request_closed, "changed": request_changed}
ERRORS = {"not found": NotFoundError, "forbidden": ForbiddenError, "invalid": InvalidInputError, "late": ConflictError}
CHAINS = st.sampled_from(
    [
        [("group:finance", 60.0), ("group:directors", 60.0), ("group:board", 60.0)],
        [("group:finance", 60.0), ("group:directors", 30.0), ("group:board", None)],
        [("group:directors", 60.0), ("group:finance", None)],
        [("group:finance", 60.0)],
        [("group:finance", None)],
        [("owner", 60.0), ("group:directors", None)],
    ]
)
WHO = st.sampled_from([None, *NAMES, "fay", "ann", "dan"])
TO = st.sampled_from(
    ["group:finance", "group:directors", "user:fay", "user:ann", "user:eve", "user:op", "user:none", "owner"]
)
ANSWERS: dict[str, list[dict[str, Any]]] = {
    Kind.QUESTION: [{"text": "red"}, {"action": "skip"}, {"action": "cancel"}, {"text": " "}],
    Kind.APPROVAL: [
        {"action": "approve"},
        {"action": "deny"},
        {"action": "edit", "arguments": {"amount": 3}},
        {"action": "edit", "arguments": {"amount": "much"}},
        {"action": "cancel"},
    ],
    Kind.UNCERTAIN: [{"action": "resolve", "outcome": "run_again"}, {"action": "cancel"}],
}
BAD = [{"text": " "}, {"action": "edit", "arguments": {"amount": "much"}}]
SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}}
# Drawn most often is what is still open.
REQUESTS = st.runner().flatmap(lambda machine: st.sampled_from([*machine.asked, *3 * machine.open()]))
OPEN = st.runner().flatmap(lambda machine: st.sampled_from(machine.open() or machine.asked))


class RequestsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock().__enter__()
        self.users = {name: get_user_model().objects.create_user(name) for name in NAMES}
        for name, group in GROUPS.items():
            self.users[name].groups.add(Group.objects.get_or_create(name=group)[0])
        held = ("change_humanrequest", "view_humanrequest")
        self.users["op"].user_permissions.set(Permission.objects.filter(codename__in=held))
        self.people = People()
        self.asked: list[Asked] = []
        self.told: dict[Any, list[str]] = {}
        self.receivers = {name: self._receiver(name) for name in SIGNALS}
        for name, receiver in self.receivers.items():
            SIGNALS[name].connect(receiver)
        self.paths = count()

    def _receiver(self, name: str) -> Any:
        def receiver(request: HumanRequest, **more: Any) -> None:
            self.told.setdefault(request.pk, []).append(name)

        return receiver

    def teardown(self) -> None:
        for name, receiver in self.receivers.items():
            SIGNALS[name].disconnect(receiver)
        self.clock.__exit__(None, None, None)
        Session.objects.all().delete()
        AuditRecord.objects.all().delete()
        Group.objects.all().delete()
        get_user_model().objects.all().delete()

    def open(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.is_open]

    # ------------------------------------------------------------------------------------------- people and time

    @rule(name=st.sampled_from(["fay", "dan", "bea", "ann"]))
    def somebody_leaves_or_returns(self, name: str) -> None:
        self.people.gone ^= {name}
        get_user_model().objects.filter(username=name).update(is_active=name not in self.people.gone)

    @rule(other=st.sampled_from(["fay", "dan"]), name=st.sampled_from(["eve", "ann", "op"]))
    def somebody_stands_in_or_no_more(self, other: str, name: str) -> None:
        Delegation.objects.filter(user=self.users[other]).delete()
        if self.people.stands_in.pop(other, None) != name:
            self.people.stands_in[other] = name
            Delegation.objects.create(user=self.users[other], delegate=self.users[name])

    @rule(seconds=st.sampled_from([20.0, 45.0, 60.0, 200.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # ------------------------------------------------------------------------------------------- what runs do

    @initialize(steps=CHAINS)
    def one_is_open(self, steps: Any) -> None:
        self.ask(Kind.APPROVAL, steps, "ann", True)

    @precondition(lambda self: len(self.open()) < 4)
    @rule(
        kind=st.sampled_from([Kind.APPROVAL, Kind.APPROVAL, Kind.QUESTION, Kind.UNCERTAIN]),
        steps=CHAINS,
        owner=st.sampled_from([None, "ann"]),
        four_eyes=st.booleans(),
    )
    def ask(self, kind: Any, steps: Any, owner: str | None, four_eyes: bool) -> None:
        if steps[0][0] == "owner" and owner is None:  # that would be the staff
            return
        now, lease = self.clock.now, leased(make_run(owner=owner and self.users[owner]))
        steps = steps[:] if kind != Kind.QUESTION or steps[0][0] != "owner" else [("owner", None)]
        given = {"steps": [{"to": to, "within": within} for to, within in steps], "four_eyes": four_eyes}
        about: dict[str, Any] = {Kind.APPROVAL: {"arguments": ARGUMENTS, "details": {"schema": SCHEMA}}}.get(kind, {})
        if kind == Kind.UNCERTAIN:
            about = {"expires": False, "not_before": now + timedelta(seconds=50)}
        request = world.requests_new(
            lease.run, f"p{next(self.paths)}", kind, present=now, to=Addressees.of(given), tool="pay", **about
        )
        if len(steps) > 1:
            world.place_first(request, now)
        model = Asked(request.id, lease.run_id, kind, owner, request.four_eyes, steps, now, about.get("not_before"))
        assert request.four_eyes is (four_eyes)
        world.open_request(lease, [self._entry("request.opened")], request=request)
        self._suspend(lease)
        model.begins(now, self.people)
        if kind != Kind.UNCERTAIN and all(within for _, within in steps):
            left = steps[model.level :] if self.people.somebody(model.to, model) else steps
            model.expires_at = now + timedelta(seconds=sum(within or 0 for _, within in left))
        self.asked.append(model)

    @contextmanager
    def _lease(self, asked: Asked) -> Iterator[Lease]:
        """The run wakes, and waits again afterwards."""
        world.touch([asked.run])
        lease = world.claim(asked.run, "w")
        assert lease is not None
        yield lease
        self._suspend(lease)
        asked.run_status = "suspended"

    def _suspend(self, lease: Lease) -> None:
        seen = world.waiting_facts(lease).wake_seq
        world.suspend(lease, [self._entry("log")], seen=seen, waits=[{"kind": "signal"}], wake_at=None)

    def _entry(self, kind: str) -> Entry:
        return Entry(kind, f"@{kind}.{next(self.paths)}")

    @precondition(lambda self: self.open())
    @rule(asked=OPEN)
    def expire(self, asked: Asked) -> None:
        if asked.run_status not in ("suspended", "pending"):
            return
        with self._lease(asked) as lease:
            if asked.is_open and asked.is_over(self.clock.now):
                world.expire_request(lease, [self._entry("log")], request_id=asked.id)
                asked.close("expired")
            else:
                with pytest.raises(world.NotExpired):
                    world.expire_request(lease, [self._entry("log")], request_id=asked.id)

    @rule(asked=REQUESTS, fails=st.booleans())
    def end(self, asked: Asked, fails: bool) -> None:
        """The run is cancelled from outside; or fails under its worker, which may be retried."""
        if asked.run_status not in ("suspended", "pending"):
            return
        if fails:
            world.touch([asked.run])
            entry = self._entry("run.failed")
            error = {"type": "E", "message": "x"}
            world.finish(world.claim(asked.run, "w"), Status.FAILED, [entry], error=error, entangled=True)
        else:
            cancel(asked.run, "enough")
        asked.run_status = "failed" if fails else "cancelled"
        asked.close("cancelled")

    @precondition(lambda self: any(asked.run_status == "failed" for asked in self.asked))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from([asked for asked in self.asked if asked.run_status == "failed"]))
        retry(asked.run, send=lambda run_id: None)
        asked.run_status = "pending"
        asked.reopen(self.clock.now, self.people)

    # ------------------------------------------------------------------------------------------- what is done to them

    @rule(name=st.sampled_from(["eve", "ann", "op"]))
    def look(self, name: str) -> None:
        """Who may answer what, in their own right or in another's place."""
        found = world.open_among(self.users[name], list(HumanRequest.objects.all()))
        assert found == {asked.id for asked in self.asked if self.people.right(name, asked.to, asked)}

    @rule(late=st.booleans())
    def sweep(self, late: bool) -> None:
        """Those whose time is up are put to others; whoever else is told to look, finds nothing to do."""
        now = self.clock.now
        due = [asked for asked in self.asked if asked.is_due(now)]
        assert set(world.due_to_escalate(99)) == {asked.id for asked in due}
        for asked in self.asked if late else due:
            expected = asked in due and asked.escalate(now, self.people)
            assert world.escalate(asked.id) is expected

    @rule(asked=REQUESTS, name=WHO, stale=st.sampled_from([False, False, False, True]), data=st.data())
    def answer(self, asked: Asked, name: str | None, stale: bool, data: st.DataObject) -> None:
        """`stale`: from a page of before."""
        said = data.draw(st.sampled_from(ANSWERS[asked.kind]))
        is_wrong = said in BAD or (asked.kind == Kind.UNCERTAIN and said["action"] == "cancel")
        refusal = (
            self.people.refusal(name, asked)
            or self._closed(asked)
            or ("invalid" if is_wrong else "")
            or self._late(asked, stale)
        )
        with self._refused(refusal, asked):
            by = name and self.users[name]
            world.answer(asked.id, by=by, version=asked.version - 1 if stale else None, **said)
        if not refusal:
            signed = self.people.right(name, asked.to, asked)
            assert signed
            asked.status, asked.answer = "answered", (said.get("action", "answer"), *signed)
            asked.arguments = said.get("arguments")
            asked.changed("cancelled" if said.get("action") == "cancel" else "answered", "answered")
            asked.run_status = "pending"

    @rule(asked=REQUESTS, name=WHO, to=TO, stale=st.sampled_from([False, False, True]))
    def reassign(self, asked: Asked, name: str | None, to: str, stale: bool) -> None:
        to = "owner" if to == "owner" and asked.owner else to
        if to == "owner" and asked.owner is None:
            return
        refusal = self.people.refusal(name, asked)
        is_operator = bool(refusal) and name == "op"
        refusal = "" if is_operator else refusal
        refusal = refusal or self._closed(asked) or self._bad_address(asked, name, to, is_operator)
        refusal = refusal or self._late(asked, stale, not_before=False)
        with self._refused(refusal, asked):
            by = name and self.users[name]
            world.reassign(asked.id, to, by=by, version=asked.version - 1 if stale else None)
        if not refusal:
            asked.reassign(to)

    def _bad_address(self, asked: Asked, name: str | None, to: str, is_operator: bool) -> str:
        if to == asked.to:
            return "invalid"
        if is_operator and self.people.right(name, to, asked):
            return "forbidden"  # nobody makes an approver of themselves
        confirms = to == "owner" and asked.four_eyes
        return "invalid" if confirms or not self.people.somebody(to, asked) else ""

    @staticmethod
    def _closed(asked: Asked) -> str:
        return "" if asked.is_open else "late"

    def _late(self, asked: Asked, stale: bool, not_before: bool = True) -> str:
        early = not_before and asked.not_before is not None and self.clock.now < asked.not_before
        return "late" if stale or early or asked.is_over(self.clock.now) else ""

    @contextmanager
    def _refused(self, why: str, asked: Asked) -> Iterator[None]:
        if not why:
            yield
            return
        with pytest.raises(ERRORS[why]) as found:
            yield
        if why == "late" and not asked.is_open:
            name = (asked.answer or ("", "", ""))[1]
            by = f" by {name}" if asked.status == "answered" and name else ""
            assert str(found.value).endswith(f"already {asked.status}{by}.")

    @invariant()
    def holds(self) -> None:
        rows, records = read(), recorded()
        assert set(rows) == {asked.id for asked in self.asked}
        for asked in self.asked:
            check(asked, rows[asked.id], records[str(asked.id)], self.told[asked.id])


@on_postgresql
@pytest.mark.timeout(600)  # of a failure: to look for the shortest way there
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("examples", sizes(20, 50))
def test_requests_do_what_their_model_does(examples):
    how = settings(
        max_examples=examples,
        stateful_step_count=40,
        suppress_health_check=list(HealthCheck),  # a busy machine must not fail it
    )

    run_state_machine_as_test(RequestsMachine, settings=how)
