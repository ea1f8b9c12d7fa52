"""An erasure beside other transactions and faulty rows: nothing outlives it, nothing stops it."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import transaction
from django.db.models.signals import pre_delete, pre_save
from django.utils import timezone

from ravi_django import submit
from ravi_django.capabilities.feeds import Item
from ravi_django.models import Erasure, HumanRequest, RaviFile, Run, Schedule, Session, Source, Status, Turn, uuid7
from ravi_django.testing import FakeClock
from tests.support import world
from tests.support.asked import approval_of
from tests.support.feeds import follow, publish
from tests.support.patience import BOUND_S
from tests.support.runs import (
    code,
    drive,
    in_background,
    leased,
    make_run,
    on_postgresql,
    somebody_waits_for_a_lock,
    uncommitted,
    until,
)
from tests.support.world import fork

pytestmark = pytest.mark.django_db(transaction=True)


async def quiet(ctx: Any, inbox: Any) -> str:
    return await ctx.log("done") or "done"


def forking(ada: Any) -> Callable[[], Any]:
    run = drive(make_run(owner=ada, session=Session.objects.create(owner=ada)))
    Turn.objects.create(session=run.session, agent="test/code", position=0, role="user", content=[{"text": "secret"}])
    return lambda: fork(run.id, 1, send=print)


def ticking(ada: Any) -> Callable[[], Any]:
    due = {"every_s": 60, "next_at": timezone.now(), "due_at": timezone.now()}
    schedule = Schedule.objects.create(name="n", agent="test/code", input="secret", owner=ada, **due)
    return lambda: world.see_to(schedule.id, 1, timezone.now(), {})


def polling(ada: Any) -> Callable[[], Any]:
    source = Source.objects.create(name="secret", agent="test/code", owner=ada)
    return lambda: world.deliver_items(source, [Item(id="i", title="secret")])


def delivering(ada: Any) -> Callable[[], Any]:
    follow("test/code", owner=ada)
    publication = publish("secret")
    return lambda: world.deliver_batch(publication.id, 10)


@pytest.fixture(autouse=True)
def _agent(monkeypatch: pytest.MonkeyPatch) -> None:
    code(quiet)
    world.silence(monkeypatch, "fan_out_wake", "fan_out_hint")


@on_postgresql
@pytest.mark.parametrize("writer", [forking, ticking, polling, delivering])
def test_what_is_made_of_other_rows_meanwhile_is_erased(writer: Any, ada: Any) -> None:
    write = writer(ada)
    with uncommitted(write):
        erasing = in_background(call_command, "ravi_erase", "ada")
        until(somebody_waits_for_a_lock)
    erasing.result(BOUND_S)
    assert not (Session.objects.exists() or Run.objects.exists() or Erasure.objects.exists())


@pytest.mark.sqlite
@pytest.mark.parametrize("writer", [ticking, polling, delivering])
def test_behind_the_mark_nothing_is_made_of_rows_that_wait_for_their_erasure(writer: Any, ada: Any) -> None:
    write = writer(ada)
    leased(make_run(owner=ada, session=Session.objects.create(owner=ada)))
    assert not world.erase_user(ada)
    with transaction.atomic():
        write()
    assert not Session.objects.filter(owner=ada).exists()


@on_postgresql
@pytest.mark.parametrize(
    ("model", "by"), [*product((Session, RaviFile), ("erasure", "deletion")), (Erasure, "the pass for names")]
)
def test_rows_are_locked_in_the_order_of_their_ids(model: Any, by: str, ada: Any) -> None:
    first, second = sorted(uuid7() for _ in range(2))
    columns = {
        Session: {"owner": ada},
        RaviFile: {"owner": ada, "size": 1},
        Erasure: {"name": "n", "position": "names"},
    }
    for pk in (second, first):  # not in the order of the table
        model.objects.create(pk=pk, **columns[model])
    erase = {"erasure": partial(world.erase_user, ada), "deletion": ada.delete}.get(by, world.erasing_sweep)
    with transaction.atomic():
        model.objects.select_for_update(no_key=True).get(pk=first)
        erasing = in_background(erase)
        until(somebody_waits_for_a_lock)
        assert model.objects.select_for_update(no_key=True, skip_locked=True).filter(pk=second).exists()
    erasing.result(BOUND_S)


@on_postgresql
@pytest.mark.parametrize("writer", [forking, ticking, polling, delivering, "message"])
def test_a_deletion_waits_for_a_writer_whose_commit_needs_the_user(writer: Any, ada: Any) -> None:
    session = Session.objects.create(owner=ada)
    write = (lambda: submit("test/code", "hi", session=session, user=ada)) if writer == "message" else writer(ada)
    with uncommitted(write):
        deleting = in_background(ada.delete)
        until(somebody_waits_for_a_lock)
    deleting.result(BOUND_S)
    world.erasing_sweep()
    assert not (Session.objects.exists() or Run.objects.exists())


@pytest.mark.sqlite
def test_a_row_that_cannot_be_erased_stops_no_other(ada: Any, clock: FakeClock, caplog: Any) -> None:
    people = [ada, *(get_user_model().objects.create_user(name) for name in ("bob", "cleo"))]
    sessions = [Session.objects.create(owner=user) for user in people for _ in range(3)]
    requests = [approval_of(make_run(), to=f"user:{user.get_username()}") for user in people]
    Run.objects.update(status=Status.COMPLETED)
    old = Session.objects.create(title="old")
    stuck = {sessions[0].pk, sessions[4].pk, requests[2].pk}

    def refuse(sender: Any, instance: Any, **more: Any) -> None:
        if instance.pk in stuck:
            raise ValueError(f"{instance.pk} stays")

    pre_delete.connect(refuse, sender=Session)
    pre_save.connect(refuse, sender=HumanRequest)
    for user in people:
        user.delete()
    for _ in range(3):
        world.erasing_sweep()
    left = Session.objects.filter(pk__in=[session.pk for session in sessions])
    assert {row.pk for row in left} == {sessions[0].pk, sessions[4].pk}
    assert set(Erasure.objects.values_list("name", flat=True)) == {"ada", "bob", "cleo"}
    assert f"{sessions[0].pk} stays" in caplog.text
    clock.advance(3601)
    Session.objects.filter(pk=old.pk).update(updated_at=clock.now)
    clock.advance(1)
    world.prune({"sessions": 0.0})
    assert not Session.objects.filter(pk=old.pk).exists()
    found = [finding.what for finding in world.doctor() if finding.level == "warning"]
    assert [what[:36] for what in found if "erasures" in what] == ["erasures: 3 are older than an hour: "]
    stuck.clear()
    world.erasing_sweep()
    world.erasing_sweep()
    assert not (left.all() or Erasure.objects.exists())
    assert all("user:deleted-" in request.to for request in HumanRequest.objects.all())


def test_more_refused_sessions_than_a_sweep_tries_hide_no_other(ada: Any) -> None:
    ids = sorted(Session.objects.create(owner=ada).pk for _ in range(102))
    refused = set(ids[:101])

    def refuse(sender: Any, instance: Any, **more: Any) -> None:
        if instance.pk in refused:
            raise ValueError(f"{instance.pk} stays")

    pre_delete.connect(refuse, sender=Session)
    ada.delete()
    for _ in range(2):
        world.erasing_sweep()
    assert set(Session.objects.values_list("pk", flat=True)) == refused
    refused.clear()  # the next sweeps begin with the first again
    for _ in range(2):
        world.erasing_sweep()
    assert not (Session.objects.exists() or Erasure.objects.exists())
