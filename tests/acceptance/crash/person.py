"""A process of people who answer what is open, until they are killed: each answer as somebody who may give it.

What they were told of an answer goes to a file beside the ledger, as an effect does: that a request is answered as one
of them says, and by nobody else, is for `people_checks` to see.
"""

from __future__ import annotations

import random
import time
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction

from tests.acceptance.crash.lab_app import ledger
from tests.acceptance.crash.wishes import CHIEFS, CLERKS, PEOPLE, answer_to
from tests.support import world

REST_S = 0.25  # at most, between two looks
VOTES = "votes"  # the file's name
IN_A_TRANSACTION, TAKEN_BACK = 0.25, 0.08  # of the answers are part of something larger; that is rolled back


class Regret(Exception):
    """The larger thing did not come about."""


def make_people() -> None:
    """Once for the laboratory; safe to repeat."""
    from django.contrib.auth.models import Group, User

    for name, group in PEOPLE.items():
        user, _ = User.objects.get_or_create(username=name)
        user.groups.add(Group.objects.get_or_create(name=group)[0])


def serve(name: str) -> None:
    while True:
        try:
            _look()
        except (DatabaseError, InterfaceError):
            pass  # it restarts
        finally:
            connections.close_all()
        time.sleep(random.uniform(0, REST_S))


def _look() -> None:
    from django.contrib.auth.models import User

    names = [name for name, group in PEOPLE.items() if group in (CLERKS, CHIEFS)]
    user = User.objects.get(username=random.choice(names))
    found = list(world.answerable(user).filter(status="pending").exclude(kind="uncertain")[:20])
    random.shuffle(found)
    for request in found:
        if (answer := answer_to(request)) is not None:
            _give(request, answer, user)


def _give(request: Any, answer: dict[str, Any], user: Any) -> None:
    from ravi_django.kernel import ConflictError, ForbiddenError, NotFoundError

    try:
        if random.random() < IN_A_TRANSACTION:
            with transaction.atomic():
                world.answer(request.id, **answer, by=user)
                time.sleep(random.uniform(0, 0.03))
                if random.random() < TAKEN_BACK:
                    raise Regret
        else:
            world.answer(request.id, **answer, by=user)
    except Regret:
        ledger.note("regretted", VOTES, request=str(request.id), by=user.username)
    except (ConflictError, ForbiddenError, NotFoundError) as error:  # another was first; or it was put to others
        ledger.note("refused", VOTES, request=str(request.id), by=user.username, error=str(error))
    else:
        ledger.note("answered", VOTES, request=str(request.id), by=user.username)
