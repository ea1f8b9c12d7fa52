"""ResponseCache: who is given what was answered before, and that no cache can fail a call."""

from threading import Event

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.core.management import call_command
from django.db import connection

from ravi_django import register
from ravi_django.calls.llm import FallbackModel, LiteLLMModel
from ravi_django.checks import check_settings
from ravi_django.kernel import ChatMessage, GenerationOptions, ModelResponse, TextBlock, ToolSpec, Usage
from ravi_django.middleware import ResponseCache
from ravi_django.models import JournalEntry, Status
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.cases import case, refused
from tests.support.runs import BOUND_S, CodeAgent, code, drive, make_run, take_over

pytestmark = pytest.mark.django_db(transaction=True)

ANSWER = ModelResponse.of([TextBlock(text="Paris")], usage=Usage(input_tokens=9, output_tokens=1), cost=0.5)


@pytest.fixture(autouse=True)
def _empty(settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "tests"}}
    caches["default"].clear()
    yield
    caches["default"].clear()


@pytest.fixture
def users():
    return [get_user_model().objects.create_user(name) for name in ("ann", "bob")]


def asking(cache, *, text="the capital of France?", options=None, model=None, answer=ANSWER):
    async def story(ctx, inbox):
        return (await ctx.llm([ChatMessage.of("user", text)], options=options)).text

    agent = code(story, model=model or ScriptedModel([answer]))
    agent.middleware = [cache]
    return agent


def test_the_same_question_is_answered_for_nothing(users):
    brief = asking(ResponseCache(ttl=0.001))
    for _ in range(2):
        drive(make_run())
    assert len(brief.model.calls) == 2, "an answer is good for its time"
    agent = asking(ResponseCache())
    first, second = (drive(make_run(owner=users[0])) for _ in range(2))
    assert first.output == second.output == "Paris"
    assert len(agent.model.calls) == 1
    assert (first.input_tokens, float(first.cost)) == (9, 0.5)
    assert (second.input_tokens, float(second.cost), second.cost_unknown) == (0, 0.0, False)
    assert JournalEntry.objects.get(run=second, kind="llm.call").result["cached"] is True
    assert "cached" not in JournalEntry.objects.get(run=first, kind="llm.call").result


def test_nobody_is_given_what_another_user_was_answered(users):
    ann, bob = users
    for scope, given, calls in (
        ("user", [(ann, ""), (bob, ""), (None, ""), (ann, "acme")], 4),
        ("tenant", [(ann, "acme"), (bob, "acme"), (bob, "other")], 2),
        ("site", [(ann, "acme"), (None, "")], 1),
    ):
        agent = asking(ResponseCache(scope=scope))
        for owner, tenant in given:
            drive(make_run(owner=owner, tenant=tenant))
        assert len(agent.model.calls) == calls, scope


def test_anything_else_is_another_question():
    asking(ResponseCache())
    drive(make_run())
    for other in (
        {"text": "the capital of Spain?"},
        {"options": GenerationOptions(temperature=0.5)},
        {"options": GenerationOptions(tools=[ToolSpec(name="look")])},
        {"model": ScriptedModel([ANSWER], name="another")},
    ):
        agent = asking(ResponseCache(), **other)
        drive(make_run())
        assert len(agent.model.calls) == 1, other


@pytest.mark.parametrize("dies", [1, "end"])
def test_a_replay_needs_no_cache(clock, dies):
    agent = asking(ResponseCache())
    drive(make_run())
    run = drive(make_run(), dies=dies)
    if dies == "end":
        caches["default"].clear()
    run = take_over(clock, run)
    assert run.output == "Paris"
    assert len(agent.model.calls) == 1
    assert run.input_tokens == 0


def test_what_is_cut_empty_or_huge_is_not_kept():
    for number, answer in enumerate(
        (
            ModelResponse.of([TextBlock(text="Par")], finish_reason="length"),
            ModelResponse.of([]),
            ModelResponse.of([TextBlock(text="x" * 600_000)]),
            KeyError("gone"),
        )
    ):
        agent = asking(ResponseCache(), text=str(number), answer=answer)
        for _ in range(2):
            assert drive(make_run()).status == (Status.FAILED if number == 3 else Status.COMPLETED)
        assert len(agent.model.calls) == 2, number


def test_a_broken_entry_is_a_miss(monkeypatch):
    for body in ("{", "[]", '{"form": 0}', '{"form": 1, "content": [{}]}', b"\0", 7):
        agent = asking(ResponseCache())
        monkeypatch.setattr(LocMemCache, "get", lambda self, key, body=body: body)
        assert (drive(make_run()).output, len(agent.model.calls)) == ("Paris", 1), body


@pytest.mark.parametrize("broken", ["get", "set"])
def test_a_cache_that_is_away_fails_no_call_and_is_left_alone(monkeypatch, broken):
    asked = []

    def away(self, key, *args):
        asked.append(key)
        raise ConnectionError("refused")

    monkeypatch.setattr(LocMemCache, broken, away)
    asking(ResponseCache())
    assert [drive(make_run()).output for _ in range(3)] == ["Paris"] * 3
    assert len(asked) == 1


def test_a_cache_that_hangs_is_waited_for_a_little(monkeypatch):
    over, came_back = Event(), []
    world.patch(monkeypatch, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(LocMemCache, "get", lambda self, key: came_back.append(over.wait(BOUND_S)))
    asking(ResponseCache())
    try:
        assert drive(make_run()).output == "Paris"
        assert not came_back
    finally:
        over.set()


def test_it_works_across_processes_with_a_cache_that_does(settings, valkey_url):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": valkey_url}}
    agent = asking(ResponseCache())
    drive(make_run())
    drive(make_run())
    kept = asking(ResponseCache())  # as another process has it
    run = drive(make_run())
    assert (len(agent.model.calls), len(kept.model.calls), run.output) == (1, 0, "Paris")


def test_a_table_may_be_the_cache_and_no_connection_stays_open(settings):
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "table": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "test_cache"},
    }
    call_command("createcachetable", database="default")
    agent = asking(ResponseCache(alias="table"))
    for _ in range(2):
        drive(make_run())
    assert len(agent.model.calls) == 1
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE test_cache")


def test_bad_parameters_are_refused_by_name_and_a_bad_alias_by_the_check(settings):
    for parameters, field in (({"ttl": 0}, "ttl"), ({"scope": "agent"}, "scope"), ({"alias": "nowhere"}, "alias")):
        with case(parameters), refused(field):
            ResponseCache(**parameters)
    settings.RAVI = {**settings.RAVI, "CACHE_ALIAS": "nowhere"}
    assert [found.id for found in check_settings()] == ["ravi.E008"]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ({}, {}, True),
        ({"seed": 1}, {"seed": 1}, True),
        ({}, {"api_base": "http://h/v1"}, False),
        ({"seed": 1}, {"seed": 2}, False),
        ({}, {"name": "n"}, False),
    ],
)
def test_clients_that_ask_elsewhere_or_otherwise_share_no_answers(one, other, shared, monkeypatch):
    asked = []

    async def stream(self, messages, options, meta):
        asked.append(self)
        yield ANSWER

    monkeypatch.setattr(LiteLLMModel, "stream", stream)
    cache = ResponseCache()
    for wrapped in (False, True):
        asked.clear()
        for given in (one, other):
            client = LiteLLMModel(**{"name": "m", "api_key": "k-012345", **given})
            asking(cache, model=FallbackModel([client]) if wrapped else client)
            assert drive(make_run()).output == "Paris"
        assert len(asked) == (1 if shared else 2)


def test_clients_that_do_not_tell_are_their_agents_own():
    cache, models = ResponseCache(), [ScriptedModel([ANSWER]), ScriptedModel([ANSWER])]
    for key, model in zip("ab", models, strict=True):
        agent = CodeAgent(asking(cache, model=model).run, key=key, model=model)
        agent.middleware = [cache]
        register(agent)
        assert drive(make_run(f"test/{key}")).output == "Paris"
    assert [len(model.calls) for model in models] == [1, 1]
