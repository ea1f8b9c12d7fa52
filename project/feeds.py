"""The demo's feeds: a newsroom for each topic of the local feed server, and a reader of one's own for everybody."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import F

from project.feed_server import TOPICS as NEWS
from project.models import FeedPreferences
from ravi_django import InformationAgent, PersonalFeedAgent, follow, register, signal, submit
from ravi_django.integrations.llm import model_from_env
from ravi_django.kernel import IdempotencyMismatchError
from ravi_django.models import ACTIVE, Follow, Run, Source
from ravi_django.people import site_rules

TOPICS = tuple(f"news/{topic}" for topic in NEWS)
READER = "personal_feed/reader"
POLL_S = 3  # each sweep finds them due
# What the first start gives the demo's users; from then on it is theirs to change.
FORMATS = dict(zip(NEWS, ("rss", "atom", "json", "rss"), strict=True))
TASTES = {
    "demo": (
        "telescope, planet, comet, robots, battery, rider, chess, velodrome, jazz, guitar, violin",
        ("news/science", "news/sport", "news/music"),
    ),
    "ada": (
        "sea, whales, octopuses, bees, moss, choir, songbook, organ, bakery, small shop, cinema, not football",
        ("news/science", "news/music", "news/business"),
    ),
}

for topic in NEWS:
    register(InformationAgent(topic, model=model_from_env(), output_topic=f"news/{topic}"), access="authenticated")
register(PersonalFeedAgent("reader", model=model_from_env()), access="authenticated")


def follows_of(user: Any) -> Any:
    return Follow.objects.filter(owner=user, agent=READER)


def readers_of(user: Any) -> Any:
    return Run.objects.filter(owner=user, agent=READER, parent=None)


def preferences_of(user: Any) -> str:
    """What the user has saved."""
    return FeedPreferences.objects.filter(user=user).values_list("text", flat=True).first() or ""


def session_of(user: Any) -> UUID | None:
    """Where the user's reader is at work, or was last."""
    rows = readers_of(user).order_by("-id")
    found = rows.filter(status__in=ACTIVE).first() or rows.first()
    return None if found is None else found.session_id


def reader_of(user: Any) -> Run:
    """The user's reader at work; begun when there is none. It waits for items, and costs rows alone."""
    rows = readers_of(user).order_by("-id")
    if (live := rows.filter(status__in=ACTIVE).first()) is not None:
        return live  # type: ignore[no-any-return]
    last = rows.first()
    where = {"session": last.session_id} if last else {"tenant": site_rules.tenant_for(user)}
    begin = partial(submit, READER, f"prefer: {preferences_of(user)}", user=user, **where)
    try:
        # Whoever comes at the same time knows the same last one: of them all one begins the next.
        return begin(idempotency_key=f"feed after {last and last.id}")
    except IdempotencyMismatchError:  # with other preferences
        return rows.filter(status__in=ACTIVE).first() or rows[0]  # type: ignore[no-any-return]


def settle(user: Any) -> None:
    """What is followed by the contract's own call, `{agent, topic}`, is delivered to the reader that there is, and the
    reader after it goes by what the user has saved."""
    rows = list(follows_of(user))
    if any(row.session_id is None and row.home_id is None for row in rows):
        follows_of(user).filter(session=None, home=None).update(home=session_of(user))
    told_nothing = [row for row in rows if "preferences" not in row.metadata]
    if told_nothing and (kept := FeedPreferences.objects.filter(user=user).first()) is not None:
        _keep(told_nothing, kept.text)


def followed(user: Any) -> list[dict[str, Any]]:
    """The topics that the user follows, each once, with all the follows that it has: that of no session first."""
    found: dict[str, dict[str, Any]] = {}
    for row in follows_of(user).order_by(F("session").asc(nulls_first=True), "id"):
        topic = found.setdefault(row.topic, {"topic": row.topic, "every_s": row.every_s, "ids": []})
        topic["ids"].append(str(row.id))
    return sorted(found.values(), key=lambda topic: topic["topic"])


def change_preferences(user: Any, text: str) -> None:
    """For what comes from now on. Inside the caller's transaction."""
    FeedPreferences.objects.update_or_create(user=user, defaults={"text": text})
    _keep(follows_of(user), text)
    signal(reader_of(user).id, "new_feed_item", {"preferences": text})


def _keep(follows: Iterable[Follow], text: str) -> None:
    """With the follows: for the runs that deliveries start. One that has just been ended stays so."""
    for row in follows:
        Follow.objects.filter(id=row.id).update(metadata={**row.metadata, "preferences": text})


def seed(users: dict[str, Any], feed_server: str) -> None:
    """The sources of the newsrooms, at the address that the feed server has this time, and what the users follow at
    first. Safe to repeat."""
    for topic in NEWS:
        at = {
            "location": f"{feed_server}/{topic}.{FORMATS[topic]}",
            "etag": "",
            "modified": "",
            "next_at": None,
            "failures": 0,
        }
        fixed = {"agent": f"information/{topic}", "every_s": POLL_S, "enabled": bool(feed_server)}
        Source.objects.update_or_create(name=f"Demo {topic}", kind=Source.Kind.FEED, defaults={**at, **fixed})
    for name, (preferences, topics) in TASTES.items():
        user = users[name]
        if follows_of(user).exists() or readers_of(user).exists():
            continue
        FeedPreferences.objects.create(user=user, text=preferences)
        reader_of(user)
        for topic in topics:
            follow(READER, topic, user=user)
        settle(user)
