"""Followers of one topic by the thousand, in a site's own database: half of them wait, half are idle. Their agent is
one that no worker of the test has the code of: what they are given stays as it was delivered.

    python -m tests.acceptance.crash.crowd 10000
"""

from __future__ import annotations

import sys

import django

from tests.support import world

TOPIC, AGENT = "news/crowd", "test/crowd"


def main() -> None:
    django.setup()
    from django.contrib.auth import get_user_model

    from ravi_django.models import Agent, Follow, Session
    from tests.support.feeds import follow_row, waiting_runs

    count = int(sys.argv[1])
    users = get_user_model()
    Agent.objects.create(address=AGENT, source=Agent.Source.CODE, access="authenticated")
    owners = users.objects.bulk_create(users(username=f"crowd-{number}") for number in range(count))
    homes = Session.objects.bulk_create(Session(agent=AGENT, owner=owner) for owner in owners[: count // 2])
    rows = [
        follow_row(AGENT, TOPIC, owner=owner, home=home)
        for owner, home in zip(owners, [*homes, *[None] * (count - len(homes))], strict=True)
    ]
    Follow.objects.bulk_create(rows)
    waiting_runs(rows[: len(homes)])
    print(world.emit(TOPIC, {"said": "hello"}).id)


if __name__ == "__main__":
    main()
