"""ravi_django.follow, unfollow, emit: the social graph for a site's own code."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import transaction

from ravi_django import emit, follow, register, save_spec, unfollow
from ravi_django.kernel import (
    AgentNotFoundError,
    ForbiddenError,
    IdempotencyMismatchError,
    InputTooLargeError,
    InvalidInputError,
    SessionNotFoundError,
    TopicId,
)
from ravi_django.models import Agent, FeedItem, Follow, Publication, Session
from tests.support import world
from tests.support.runs import CodeAgent, code
from tests.support.world import followers

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("hinted")]

NEWS = TopicId("news", "sport")


@pytest.fixture(autouse=True)
def agent():
    async def story(ctx, inbox):
        return "done"

    return code(story)


def another(key):
    async def story(ctx, inbox):
        return "done"

    found = CodeAgent(story, key=key)
    register(found)
    return found


def session_of(user, tenant=""):
    return world.create_session(Session(owner=user, tenant=tenant))


# ---------------------------------------------------------------------------------------------------- following


@pytest.mark.parametrize("named", ["test/code", "object", "address"])
def test_following_again_is_the_same_row(agent, ada, named):
    given = {"test/code": "test/code", "object": agent, "address": agent.id}[named]
    first, created = follow(given, "news/sport", user=ada, tenant="acme")
    second, again = follow(agent, NEWS, user=ada, tenant="acme")

    assert (created, again, second.id) == (True, False, first.id)
    assert (first.agent, first.topic, first.owner, first.tenant) == ("test/code", "news/sport", ada, "acme")


def test_what_is_given_anew_is_taken_and_what_is_not_stays(agent):
    follow(agent, NEWS, every_s=60, metadata={"likes": "tennis"})
    kept, _ = follow(agent, NEWS)
    assert (kept.every_s, kept.metadata) == (60, {"likes": "tennis"})

    changed, _ = follow(agent, NEWS, every_s=30, metadata={})

    changed.refresh_from_db()
    assert (changed.id, changed.every_s, changed.metadata) == (kept.id, 30, {})


def test_a_session_is_a_follow_of_its_own_and_gives_its_tenant(agent, ada):
    session = session_of(ada, "acme")
    bound, _ = follow(agent, NEWS, user=ada, session=session)
    by_id, created = follow(agent, NEWS, user=ada, tenant="acme", session=str(session.id))
    free, _ = follow(agent, NEWS, user=ada, tenant="acme")

    assert (bound.id, created) == (by_id.id, False)
    assert (bound.session, bound.home, bound.tenant) == (session, session, "acme")
    assert free.id != bound.id and (free.session, free.home) == (None, None)


def test_a_session_without_a_tenant_is_in_that_which_is_given(agent, ada):
    found, _ = follow(agent, NEWS, user=ada, tenant="acme", session=session_of(ada))

    assert found.tenant == "acme"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"agent": "code"}, "agent"),
        ({"agent": "test/ü"}, "agent"),
        ({"agent": None}, "agent"),
        ({"topic": "a/b/c/d"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": None}, "topic"),
        ({"tenant": "t" * 101}, "tenant"),
        ({"session": "nonsense"}, "session"),
        ({"every_s": -1}, "every_s"),
        ({"every_s": 1.5}, "every_s"),
        ({"every_s": 366 * 24 * 3600 + 1}, "every_s"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": "\0"}}, "metadata"),
    ],
)
def test_bad_input_names_the_field_and_writes_nothing(given, field):
    with pytest.raises(InvalidInputError) as caught:
        follow(**{"agent": "test/code", "topic": "news/sport", **given})

    assert caught.value.field == field
    assert not Follow.objects.exists()


def test_sessions_of_others_and_of_other_tenants_are_refused(agent, ada):
    bob = get_user_model().objects.create_user("bob")

    with pytest.raises(SessionNotFoundError):
        follow(agent, NEWS, user=ada, session=session_of(bob).id)
    with pytest.raises(SessionNotFoundError):
        follow(agent, NEWS, user=ada, session=uuid4())
    with pytest.raises(InvalidInputError) as caught:
        follow(agent, NEWS, user=ada, tenant="other", session=session_of(ada, "acme"))

    assert caught.value.field == "session"
    assert not Follow.objects.exists()


def test_an_agent_that_nobody_can_run_follows_nothing(agent):
    with pytest.raises(AgentNotFoundError):
        follow("test/nobody", NEWS)
    world.sync_agents()
    Agent.objects.filter(address="test/code").update(enabled=False)
    with pytest.raises(AgentNotFoundError):
        follow(agent, NEWS)

    assert not Follow.objects.exists()


def test_a_row_agents_variables_are_looked_at_when_it_follows():
    save_spec(
        "test/row",
        {"model": "rehearsal", "system_instructions": "Likes {{ likes }}.", "variables": {"likes": {"required": True}}},
    )

    with pytest.raises(InvalidInputError):
        follow("test/row", NEWS)
    found, _ = follow("test/row", NEWS, metadata={"variables": {"likes": "tennis"}})

    assert found.metadata == {"variables": {"likes": "tennis"}}


def test_unfollowing_ends_exactly_this_follow(agent, ada):
    session = session_of(ada)
    whose = [{}, {"user": ada}, {"user": ada, "tenant": "acme"}, {"user": ada, "session": session}]
    for one in whose:
        follow(agent, NEWS, **one)

    assert unfollow(agent, NEWS, user=ada) is True
    assert unfollow(agent, NEWS, user=ada) is False
    assert unfollow(agent, "news/other") is False

    assert set(Follow.objects.values_list("owner", "tenant", "session")) == {
        (None, "", None),
        (ada.pk, "acme", None),
        (ada.pk, "", session.id),
    }


def test_a_follow_goes_with_its_owner_and_never_becomes_the_systems(agent, ada):
    follow(agent, NEWS, user=ada)

    ada.delete()

    assert not Follow.objects.exists()


def test_an_anonymous_user_is_refused(agent):
    with pytest.raises(ForbiddenError):
        follow(agent, NEWS, user=AnonymousUser())
    with pytest.raises(ForbiddenError):
        emit(NEWS, "x", user=AnonymousUser())

    assert not Follow.objects.exists() and not Publication.objects.exists()


def test_followers_come_by_id_page_by_page_and_of_one_tenant(monkeypatch, django_assert_num_queries):
    world.patch(monkeypatch, "FOLLOWS_PAGE", 2)
    agents = [another(f"a{number}") for number in range(5)]
    ids = [follow(one, NEWS)[0].id for one in agents]
    follow(agents[0], NEWS, tenant="acme")
    follow(agents[0], "news/other")

    with django_assert_num_queries(3):
        assert [one.id for one in followers(NEWS)] == ids
    with django_assert_num_queries(1):
        assert next(followers("news/sport")).id == ids[0]
    assert [one.id for one in followers(NEWS, after=ids[1])] == ids[2:]
    assert [one.id for one in followers(NEWS, after=ids[1], limit=2)] == ids[2:4]
    assert [one.id for one in followers(NEWS, limit=3)] == ids[:3]
    assert list(followers(NEWS, limit=0)) == []


# ---------------------------------------------------------------------------------------------------- publishing


def test_a_publication_is_hinted_after_the_commit(agent, hinted, ada):
    follow(agent, NEWS)

    with transaction.atomic():
        row = emit(NEWS, "goal", user=ada)
        assert hinted == []

    assert hinted == [row.id]
    assert (row.owner, row.run, row.followers, row.body["sender"]) == (ada, None, 1, None)
    assert row.message_id == row.body["id"]


def test_what_is_rolled_back_publishes_nothing(agent, hinted):
    follow(agent, NEWS)

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        emit(NEWS, "goal", id="g1")
        follow(agent, "news/other")
        raise ZeroDivisionError

    assert (Publication.objects.count(), Follow.objects.count(), hinted) == (0, 1, [])
    assert emit(NEWS, "another", id="g1").message_id == "g1"


@pytest.mark.sqlite
def test_a_repeat_is_the_first_one(agent, hinted):
    follow(agent, NEWS)
    first = emit(NEWS, {"b": 1, "a": 2}, id="g1")
    follow(agent, NEWS, tenant="acme")
    follow(another("two"), NEWS)

    second = emit(NEWS, {"a": 2, "b": 1}, id="g1")

    assert (second.id, second.followers, hinted) == (first.id, 1, [first.id])
    with pytest.raises(IdempotencyMismatchError):
        emit(NEWS, {"a": 2}, id="g1")
    assert Publication.objects.count() == 1


def test_an_id_is_of_its_publisher_topic_and_tenant(ada):
    bob = get_user_model().objects.create_user("bob")
    places = [
        {"topic": NEWS, "user": ada},
        {"topic": NEWS, "user": bob},
        {"topic": NEWS},
        {"topic": "news/other", "user": ada},
        {"topic": NEWS, "user": ada, "tenant": "acme"},
    ]

    found = {emit(**place, data=number, id="same").id for number, place in enumerate(places)}

    assert len(found) == 5


@pytest.mark.parametrize(
    ("given", "field", "error"),
    [
        ({"topic": "a/b/c/d"}, "topic", InvalidInputError),
        ({"tenant": 7}, "tenant", InvalidInputError),
        ({"id": ""}, "id", InvalidInputError),
        ({"id": "i" * 201}, "id", InvalidInputError),
        ({"id": "\0"}, "id", InvalidInputError),
        ({"data": "a\0b"}, "data", InvalidInputError),
        ({"data": {"a": float("inf")}}, "data", InvalidInputError),
        ({"data": object()}, "data", InvalidInputError),
        ({"data": "\ud800"}, "data", InvalidInputError),
        ({"data": "x" * 300_000}, "data", InputTooLargeError),
    ],
    ids=lambda given: "" if isinstance(given, dict) else None,
)
def test_bad_input_to_emit_names_the_field_and_writes_nothing(given, field, error):
    with pytest.raises(error) as caught:
        emit(**{"topic": "news/sport", "data": "x", **given})

    assert caught.value.field == field
    assert not Publication.objects.exists()


def test_what_is_deleted_takes_what_was_still_to_be_given(agent):
    found, _ = follow(agent, NEWS)
    row = emit(NEWS, "goal")
    FeedItem.objects.create(follow=found, publication=row, due_at=row.created_at)

    assert world.delete_follows(Follow.objects.all()) == 1

    assert not FeedItem.objects.exists()
