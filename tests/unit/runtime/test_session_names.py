"""Names of conversations: one user's name means one conversation, and nobody else's."""

import asyncio
import io
import logging

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from rest_framework.test import APIClient

from ravi_django import follow, schedule, submit, unfollow
from ravi_django.agents import ReActAgent, load_session_memory, rebuild_agent
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider, InMemoryHistoryProvider
from ravi_django.kernel import AgentId, AgentNotFoundError, ChatMessage, ChatPayload, IdempotencyMismatchError, Message
from ravi_django.models import Run, Session
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.runs import in_background, leased, on_postgresql, somebody_waits_for_a_lock, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def model():
    found = ScriptedModel("ok")
    agent = ReActAgent("talker", model=found, context=ContextConfig(DjangoHistoryProvider()))
    world.register(agent, access="authenticated")
    return found


@pytest.fixture
def ann():
    return User.objects.create_user("ann")


@pytest.fixture
def bob():
    return User.objects.create_user("bob")


def say(text, **options):
    return submit("react/talker", text, **options).session_id


def linked(word, text="hi"):
    payload = ChatPayload(message=ChatMessage.of("user", text))
    return Message(target=AgentId("react", "talker"), payload=payload, correlation_id=word)


def test_schedules_and_follows_take_names_too(ann):
    tick = schedule("react/talker", "hi", name="tick", every=3600, session="case 7b", user=ann)
    assert (tick.session_id, tick.session.agent) == (say("one", session="case 7b", user=ann), "react/talker")
    followed = [follow("react/talker", "news/x", session="case 8", user=ann) for _ in range(2)]
    assert [(row.session_id, is_new) for row, is_new in followed] == [
        (say("x", session="case 8", user=ann), True),
        (followed[0][0].session_id, False),
    ]
    assert unfollow("react/talker", "news/x", session="case 8", user=ann)
    assert not unfollow("react/talker", "news/x", session="case 9", user=ann)
    with pytest.raises(AgentNotFoundError):
        follow("react/nobody", "news/x", session="case 9", user=ann)
    assert not Session.objects.filter(name="case 9").exists()
    client = APIClient()
    client.force_authenticate(ann)
    body = {"agent": "react/talker", "topic": "news/x", "session": "case 8"}
    made = client.post("/ravi/follows/", body, format="json")
    assert (made.status_code, made.json()["session"]) == (201, str(followed[0][0].session_id))
    assert client.delete("/ravi/follows/", body, format="json").status_code == 204


@pytest.mark.sqlite
def test_a_name_is_of_one_user_and_tenant_and_its_conversation_goes_on(model, ann, bob, caplog):
    caplog.set_level(logging.DEBUG)
    whose = [{"user": ann}, {"user": bob}, {}, {"user": ann, "tenant": "acme"}, {"tenant": "acme"}]
    first = [say("one", session="case 7b", **more) for more in whose]
    run_until_idle()

    assert len(set(first)) == 5
    assert [say("two", session="case 7b", **more) for more in whose] == first
    run_until_idle()
    assert [message.text for message in model.calls[-1].messages][-3:] == ["one", "ok", "two"]
    assert "case 7b" not in caplog.text
    world.fork(Run.objects.filter(session=first[0]).latest("id").id, 1)  # by an entry: not the person's next branch
    key = [submit("react/talker", "x", session="case 7b", user=ann, idempotency_key="k") for _ in range(2)]
    assert key[0].id == key[1].id and key[0].session_id == first[0]


def test_the_correlation_of_a_message_of_a_program_selects_its_conversation(ann, bob):
    first = say("one", session="thread-7", user=ann)

    assert say(linked("thread-7"), user=ann) == first
    assert say(linked(str(first)), user=ann) == first, "an id of the user's own"
    assert say(linked("thread-7"), user=ann, on_busy="interrupt") == first
    whose = [{"user": bob}, {}, {"user": ann, "tenant": "b"}, {"user": User.objects.create_superuser("root")}]
    others = [say(linked(str(first)), **more) for more in whose]
    assert len({first, *others}) == 5 and [say(linked(str(first)), **more) for more in whose] == others
    theirs = say("one", tenant="a")
    assert say(linked(str(theirs)), tenant="b") != theirs == say(linked(str(theirs)), tenant="a")
    assert say(linked("thread-7"), user=ann, session=say("x", user=ann)) != first, "session= counts"


@on_postgresql
def test_two_submits_with_one_new_name_make_one_session(ann):
    with transaction.atomic():
        first = say("one", session="new", user=ann)
        second = in_background(lambda: say("two", session="new", user=ann))
        until(somebody_waits_for_a_lock)

    assert second.result(30) == first
    assert (Session.objects.count(), Run.objects.count()) == (1, 2)
    last = Run.objects.order_by("id").last()
    assert world.inbox_after(last, 0)[0][1]["correlation_id"] == str(first)


@on_postgresql
def test_a_submit_that_comes_second_leaves_no_session_of_its_name(ann):
    with transaction.atomic():
        say("one", session="a", user=ann, idempotency_key="k")
        second = in_background(lambda: say("one", session="b", user=ann, idempotency_key="k"))
        until(somebody_waits_for_a_lock)

    with pytest.raises(IdempotencyMismatchError):
        second.result(30)
    assert Session.objects.get().name == "a"


@pytest.mark.parametrize("how", ["erase", "anonymize", "keep", "erased", "deleted"])
def test_a_name_goes_with_its_user_and_its_conversation(ann, bob, settings, how):
    settings.RAVI = {**settings.RAVI, "ON_USER_DELETE": how if how in ("anonymize", "keep") else "erase"}
    first = {user: say("one", session="diary", user=user) for user in (ann, bob)}
    run_until_idle()
    out = io.StringIO()
    call_command("ravi_export", "ann", stdout=out)
    assert '"diary"' in out.getvalue()

    for user in (ann, bob):
        if how not in ("erased", "deleted"):
            user.delete()
            continue
        if how == "deleted":
            world.delete_session(first[user])
        else:
            leased(submit("react/talker", "two", session="diary", user=user))  # a live run delays the erasure
            assert not world.erase_user(user)
        assert say("again", session="diary", user=user) != first[user], "the name is free at once"

    left = Session.objects.filter(id__in=first.values()).values_list("name", "owner_key")
    assert set(left) <= {("", "")} and (how not in ("anonymize", "keep") or len(left) == 2)


def test_an_edit_in_an_older_branch_takes_the_name_along(model, ann):
    first = submit("react/talker", "one", session="n", user=ann)
    run_until_idle()
    for text in ("edited", "edited again"):
        world.fork_once(first.id, input=text)
        run_until_idle()

    assert say("two", session="n", user=ann) == Session.objects.get(name="n").id
    run_until_idle()
    assert [message.text for message in model.calls[-1].messages] == ["edited again", "ok", "two"]


def test_a_name_that_is_lost_before_its_conversation_is_read_is_made_again(monkeypatch):
    make, tries = Session.objects.bulk_create, iter([1])  # the first insert meets a session that then loses the name
    monkeypatch.setattr(Session.objects, "bulk_create", lambda rows, **o: next(tries, None) is None and make(rows, **o))
    assert say("one", session="n") == Session.objects.get().id


def steps(session_id):
    assert session_id == "s-1"
    return [{"kind": "user_message", "content": "I am Ada."}, {"kind": "assistant_message", "content": "Hi."}]


@pytest.mark.parametrize("provider", [None, InMemoryHistoryProvider, DjangoHistoryProvider])
def test_a_conversation_that_was_imported_by_name_goes_on(ann, provider):
    model, memory = ScriptedModel("You are Ada."), None

    for _ in range(2):  # another process finds it
        found = load_session_memory("s-1", steps, memory or (provider and provider()), agent_id="react/old", user=ann)
        memory = asyncio.run(found)
    spec = {"model": "m", "session_id": "s-1"}
    agent = rebuild_agent(spec, key="old", build_model=lambda name: model, memory=memory)
    world.register(agent)
    run = submit(agent, "Who am I?", session="s-1", user=ann)
    run_until_idle()

    assert [message.text for message in model.calls[0].messages] == ["I am Ada.", "Hi.", "Who am I?"]
    assert Session.objects.get() == run.session and run.session.name == "s-1"
