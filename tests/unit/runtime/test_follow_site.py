"""ravi_django.follow, unfollow, emit: the social graph for a site's own code, and for many at the same moment."""

from functools import partial
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
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, at_once, code, in_background, on_postgresql, somebody_waits_for_a_lock, until
from tests.support.world import followers

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("hinted")]

NEWS = TopicId("news", "sport")


async def story(ctx, inbox):
    return "done"


@pytest.fixture(autouse=True)
def agent():
    return code(story)


def session_of(user, tenant=""):
    return world.create_session(Session(owner=user, tenant=tenant))


def test_following_again_is_the_same_row_with_what_is_given_anew(agent, ada):
    first, created = follow("test/code", "news/sport", user=ada, tenant="acme", every_s=60, metadata={"likes": "x"})
    assert created
    assert (first.agent, first.topic, first.owner, first.tenant) == ("test/code", "news/sport", ada, "acme")
    for named in ("test/code", agent, agent.id):
        kept, created = follow(named, NEWS, user=ada, tenant="acme")
        assert (kept.id, created, kept.every_s, kept.metadata) == (first.id, False, 60, {"likes": "x"})
    changed, _ = follow(agent, NEWS, user=ada, tenant="acme", every_s=30, metadata={})
    changed.refresh_from_db()
    assert (changed.id, changed.every_s, changed.metadata) == (first.id, 30, {})


def test_a_session_is_a_follow_of_its_own_and_gives_its_tenant(agent, ada):
    session = session_of(ada, "acme")
    bound, _ = follow(agent, NEWS, user=ada, session=session)
    by_id, created = follow(agent, NEWS, user=ada, tenant="acme", session=str(session.id))
    free, _ = follow(agent, NEWS, user=ada, tenant="acme")
    given, _ = follow(agent, NEWS, user=ada, tenant="acme", session=session_of(ada))
    assert (bound.id, created) == (by_id.id, False)
    assert (bound.session, bound.home, bound.tenant) == (session, session, "acme")
    assert free.id != bound.id and (free.session, free.home) == (None, None)
    assert given.tenant == "acme", "of a session without one"


BAD = {
    "agent": ["code", "test/ü", None],
    "topic": ["a/b/c/d", "", None],
    "tenant": ["t" * 101],
    "session": ["n" * 201],
    "every_s": [-1, 1.5, 366 * 24 * 3600 + 1],
    "metadata": [[], {"a": "\0"}],
}
BAD_TO_EMIT = {
    "topic": ["a/b/c/d"],
    "tenant": [7],
    "id": ["", "i" * 201, "\0"],
    "data": ["a\0b", {"a": float("inf")}, object(), "\ud800", "x" * 300_000],
}


def test_bad_input_names_the_field_and_writes_nothing():
    whole = {follow: {"agent": "test/code", "topic": "news/sport"}, emit: {"topic": "news/sport", "data": "x"}}
    for act, table in ((follow, BAD), (emit, BAD_TO_EMIT)):
        for field, values in table.items():
            for value in values:
                with pytest.raises((InvalidInputError, InputTooLargeError)) as caught:
                    act(**{**whole[act], field: value})
                assert caught.value.field == field, (act, value)
    assert isinstance(caught.value, InputTooLargeError), "the last one is too large"
    assert not Follow.objects.exists() and not Publication.objects.exists()


def test_who_may_not_follow_is_refused_and_nothing_written(agent, ada):
    bob = get_user_model().objects.create_user("bob")
    for session in (session_of(bob).id, uuid4()):
        with pytest.raises(SessionNotFoundError):
            follow(agent, NEWS, user=ada, session=session)
    with pytest.raises(InvalidInputError) as caught:
        follow(agent, NEWS, user=ada, tenant="other", session=session_of(ada, "acme"))
    assert caught.value.field == "session"
    for act in (lambda: follow(agent, NEWS, user=AnonymousUser()), lambda: emit(NEWS, "x", user=AnonymousUser())):
        with pytest.raises(ForbiddenError):
            act()
    with pytest.raises(AgentNotFoundError):
        follow("test/nobody", NEWS)
    world.sync_agents()
    Agent.objects.filter(address="test/code").update(enabled=False)
    with pytest.raises(AgentNotFoundError):
        follow(agent, NEWS)

    assert not Follow.objects.exists() and not Publication.objects.exists()


def test_a_row_agents_variables_are_looked_at_when_it_follows():
    variables = {"likes": {"required": True}}
    save_spec("test/row", {"model": "rehearsal", "system_instructions": "Likes {{ likes }}.", "variables": variables})
    with pytest.raises(InvalidInputError):
        follow("test/row", NEWS)
    found, _ = follow("test/row", NEWS, metadata={"variables": {"likes": "tennis"}})
    assert found.metadata == {"variables": {"likes": "tennis"}}


def test_unfollowing_ends_exactly_this_follow_and_an_owners_go_with_it(agent, ada):
    session = session_of(ada)
    whose = [{}, {"user": ada}, {"user": ada, "tenant": "acme"}, {"user": ada, "session": session}]
    for one in whose:
        follow(agent, NEWS, **one)
    assert [unfollow(agent, NEWS, user=ada), unfollow(agent, NEWS, user=ada)] == [True, False]
    assert unfollow(agent, "news/other") is False
    left = {(None, "", None), (ada.pk, "acme", None), (ada.pk, "", session.id)}
    assert set(Follow.objects.values_list("owner", "tenant", "session")) == left
    ada.delete()
    assert Follow.objects.get().owner is None, "the site's own; none of hers has become the site's"


def test_followers_come_by_id_page_by_page_and_of_one_tenant(monkeypatch, django_assert_num_queries):
    world.patch(monkeypatch, "FOLLOWS_PAGE", 2)
    agents = [register(CodeAgent(story, key=f"a{number}")) for number in range(5)]
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


def test_a_publication_is_hinted_after_the_commit_and_what_is_rolled_back_never_was(agent, hinted, ada):
    follow(agent, NEWS)
    with transaction.atomic():
        row = emit(NEWS, "goal", user=ada)
        assert hinted == []
    assert hinted == [row.id]
    assert (row.owner, row.run, row.followers, row.body["sender"]) == (ada, None, 1, None)
    assert row.message_id == row.body["id"]

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        emit(NEWS, "goal", id="g1")
        follow(agent, "news/other")
        raise ZeroDivisionError

    assert (Publication.objects.count(), Follow.objects.count(), hinted) == (1, 1, [row.id])
    assert emit(NEWS, "another", id="g1").message_id == "g1"


@pytest.mark.sqlite
def test_a_repeat_is_the_first_one(agent, hinted):
    follow(agent, NEWS)
    first = emit(NEWS, {"b": 1, "a": 2}, id="g1")
    follow(agent, NEWS, tenant="acme")
    follow(register(CodeAgent(story, key="two")), NEWS)
    second = emit(NEWS, {"a": 2, "b": 1}, id="g1")
    assert (second.id, second.followers, hinted) == (first.id, 1, [first.id])
    with pytest.raises(IdempotencyMismatchError):
        emit(NEWS, {"a": 2}, id="g1")
    assert Publication.objects.count() == 1


def test_an_id_is_of_its_publisher_topic_and_tenant(ada):
    bob = get_user_model().objects.create_user("bob")
    places = [{"user": ada}, {"user": bob}, {}, {"topic": "news/other", "user": ada}, {"user": ada, "tenant": "acme"}]
    found = {emit(**{"topic": NEWS, **place}, data=number, id="same").id for number, place in enumerate(places)}
    assert len(found) == 5


@on_postgresql
def test_twenty_who_do_the_same_at_once_make_one_row(agent, ada, hinted):
    found = at_once(*[lambda: follow(agent, NEWS, user=ada)] * 20)
    assert Follow.objects.count() == len({row.id for row, _ in found}) == 1
    assert [created for _, created in found].count(True) == 1
    follow(agent, NEWS)
    found = at_once(*[lambda: emit(NEWS, {"text": "goal"}, user=ada, id="g1")] * 20)
    assert Publication.objects.count() == 1
    assert {(row.id, row.message_id, row.followers) for row in found} == {(found[0].id, "g1", 2)}
    assert hinted == [found[0].id]


@on_postgresql
def test_of_two_bodies_with_one_id_one_is_published(agent):
    def one(place):
        try:
            return emit(NEWS, f"goal {place}", id="g1").body["payload"]["message"]["content"][0]["text"]
        except IdempotencyMismatchError:
            return None

    assert len([text for text in at_once(*(partial(one, place) for place in range(10))) if text]) == 1
    assert Publication.objects.count() == 1


@on_postgresql
def test_following_and_unfollowing_at_once_never_fails(agent):
    def one(place):
        for _ in range(5):
            follow(agent, NEWS)[0] if place % 2 else unfollow(agent, NEWS)
        return True

    assert all(at_once(*(partial(one, place) for place in range(8))))
    assert Follow.objects.count() <= 1


@on_postgresql
def test_a_repeat_and_an_unfollow_wait_for_what_is_not_committed_yet(agent, hinted):
    with transaction.atomic():
        first = emit(NEWS, "goal", id="g1")
        second = in_background(lambda: emit(NEWS, "goal", id="g1"))
        until(somebody_waits_for_a_lock)
    assert second.result(BOUND_S).id == first.id

    found, _ = follow(agent, NEWS)
    with transaction.atomic():
        Follow.objects.select_for_update(no_key=True).get(id=found.id)  # as the fan-out does
        FeedItem.objects.create(follow=found, publication=first, due_at=first.created_at)
        deleted = in_background(lambda: unfollow(agent, NEWS))
        until(somebody_waits_for_a_lock)

    assert deleted.result(BOUND_S) is True
    assert not FeedItem.objects.exists() and not Follow.objects.exists()
