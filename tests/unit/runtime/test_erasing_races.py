"""An erasure beside other transactions: nothing outlives it, and nobody waits in a circle."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from ravi_django import submit
from ravi_django.capabilities.feeds import Item
from ravi_django.models import Erasure, RaviFile, Run, Schedule, Session, Source, Turn, uuid7
from tests.support import world
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

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


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


@pytest.mark.parametrize("writer", [ticking, polling, delivering])
def test_behind_the_mark_nothing_is_made_of_rows_that_wait_for_their_erasure(writer: Any, ada: Any) -> None:
    write = writer(ada)
    leased(make_run(owner=ada, session=Session.objects.create(owner=ada)))
    assert not world.erase_user(ada)
    with transaction.atomic():
        write()
    assert not Session.objects.filter(owner=ada).exists()


@on_postgresql
@pytest.mark.parametrize("model", [Session, RaviFile])
@pytest.mark.parametrize("by", ["erasure", "deletion"])
def test_rows_are_locked_in_the_order_of_their_ids(model: Any, by: str, ada: Any) -> None:
    first, second = sorted(uuid7() for _ in range(2))
    for pk in (second, first):  # not in the order of the table
        model.objects.create(pk=pk, owner=ada, **({"size": 1} if model is RaviFile else {}))
    with transaction.atomic():
        model.objects.select_for_update(no_key=True).get(pk=first)
        erasing = in_background(world.erase_user, ada) if by == "erasure" else in_background(ada.delete)
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
