"""`agent.stream/<key>` without a run: the text of all runs of an agent, live, to each reader what it may see."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.db import connections
from rest_framework.test import APIClient

from project.process import wait_until
from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import (
    CompletionEvent,
    InvalidInputError,
    ModelEvent,
    ModelResponse,
    StreamGap,
    TextBlock,
    TextDelta,
    ToolUseBlock,
    TopicId,
    UnsupportedError,
)
from ravi_django.models import Run
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.docs import Page
from tests.support.patience import BOUND_S

pytestmark = pytest.mark.django_db(transaction=True)
TOPIC, KEYS = TopicId("agent.stream", "shop"), "ravi:{live:*"


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ada")


@pytest.fixture(autouse=True)
def valkey() -> Iterator[redis.Redis]:
    """Without the readers of an earlier test."""
    with redis.Redis.from_url(world.stream_url()) as client:
        client.delete(*client.keys(KEYS), "none")
        yield client


def agent(*answers: Any, model: Any = None, **options: Any) -> str:
    agent = ReActAgent("shop", model=model or ScriptedModel(list(answers)), **options)
    return str(register(agent, access="authenticated", replace=True).id)


def finished(address: str, *users: Any) -> list[str]:
    runs = [submit(address, "hi", user=user) for user in users]
    run_until_idle()
    assert wait_until(lambda: Run.objects.filter(published_at=None, parent=None).count() == 0, BOUND_S)
    return [str(run.id) for run in runs]


async def on_a_thread(function: Callable[..., Any], *args: Any) -> Any:
    def call() -> Any:
        try:
            return function(*args)
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)


async def until(wanted: Callable[[], Any]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not wanted():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def task(coroutine: Any, valkey: redis.Redis) -> AsyncIterator[None]:
    """Runs a reader, which reads from the beginning of the block on."""
    reader = asyncio.ensure_future(coroutine)
    await until(lambda: any(valkey.pubsub_numsub(key)[0][1] for key in valkey.keys(KEYS)))
    yield
    reader.cancel()
    await asyncio.wait([reader])


async def collect(read: list[Any], user: Any = None, goes_on: asyncio.Event | None = None) -> None:
    async for event in world.Runtime().events(TOPIC, user=user):
        read.append(event)
        await (goes_on.wait() if goes_on else asyncio.sleep(0))


def ends(read: list[Any]) -> list[str]:
    return [event.run_id for event in read if isinstance(event, CompletionEvent)]


def test_a_reader_gets_the_runs_that_the_list_of_runs_shows(user: User, valkey: redis.Redis) -> None:
    eve, boss = User.objects.create_user("eve"), User.objects.create_superuser("boss")
    address = agent("words")

    async def main(who: Any) -> list[Any]:
        read: list[Any] = []
        async with task(collect(read, who), valkey):
            await on_a_thread(finished, address, eve, user, boss)
            (last,) = await on_a_thread(finished, address, who)
            await until(lambda: last in ends(read))
        return read

    for who in (user, eve, boss, None):
        read = asyncio.run(main(who))
        client = APIClient()
        client.force_authenticate(who or boss)
        assert {event.run_id for event in read} == {row["id"] for row in client.get("/ravi/runs/").json()["results"]}
        assert all((event.seq, str(event.agent_id)) == (0, address) for event in read)
        Run.objects.all().delete()


class HaltingModel:
    """Says "before", waits, and says "after"."""

    name = "halting"
    is_let = False

    async def stream(self, *args: Any) -> AsyncIterator[ModelEvent]:
        yield TextDelta(text="before")
        await until(lambda: self.is_let)
        yield ModelResponse.of([TextBlock(text="after")])


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_rights_are_read_once_a_run_and_again_after_a_minute(
    user: User, monkeypatch: pytest.MonkeyPatch, valkey: redis.Redis, seconds: float
) -> None:
    sight, looks, model = world.live_sight, list[str](), HaltingModel()
    world.patch(monkeypatch, "live_sight", lambda pk, run: looks.append(str(run)) or sight(pk, run))
    world.patch(monkeypatch, "LIVE_RIGHTS_S", seconds)
    address = agent(model=model)

    async def main() -> None:
        read: list[Any] = []
        async with task(collect(read, user), valkey):
            running = asyncio.ensure_future(on_a_thread(finished, address, user))
            await until(lambda: read)
            await on_a_thread(lambda: User.objects.filter(id=user.id).update(is_active=False))
            model.is_let = True
            (run,) = await running
            await until(lambda: ends(read) if seconds else len(looks) == 2)
            assert (ends(read), looks) == ([run], [run]) if seconds else (not ends(read))

    asyncio.run(main())


def test_hidden_values_stay_hidden(user: User, valkey: redis.Redis) -> None:
    @tool(visible="staff")
    def look_up(number: int) -> str:
        """Look up."""
        return "a secret"

    async def main(who: Any) -> Any:
        read: list[Any] = []
        call = ToolUseBlock(tool_name="look_up", arguments={"number": 7}, call_id="c")
        address = agent([call], "done", tools=[look_up])
        async with task(collect(read, who), valkey):
            await on_a_thread(finished, address, user)
            await until(lambda: ends(read))
        return next(event for event in read if isinstance(event, CompletionEvent)).content[0].arguments

    assert [asyncio.run(main(who)) for who in (user, None)] == [{}, {"number": 7}]


def test_a_reader_that_is_behind_or_loses_its_connection_gets_one_gap_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, valkey: redis.Redis
) -> None:
    world.patch(monkeypatch, "LIVE_MAX_UNREAD_BYTES", 6000)
    address = agent("x" * 2000)  # a run is two frames, together below the limit

    async def main() -> None:
        read, goes_on = list[Any](), asyncio.Event()
        async with task(collect(read, goes_on=goes_on), valkey):
            for _ in range(4):  # the last frame is behind a gap
                (last,) = await on_a_thread(finished, address, None)
            goes_on.set()
            await until(lambda: last in ends(read))
            assert [type(event) for event in read].count(StreamGap) == 1

            for client in valkey.client_list(_type="pubsub"):
                valkey.client_kill(client["addr"])
            await until(lambda: isinstance(read[-1], StreamGap))
            (last,) = await on_a_thread(finished, address, None)
            await until(lambda: last in ends(read))

    asyncio.run(main())


def test_frames_are_published_once_more_only_while_there_is_a_reader(user: User, valkey: redis.Redis) -> None:
    shown: list[tuple[str, str]] = []
    address = agent("a word")

    async def main() -> Any:
        watch = Page("events-in-python").run("shop/wall.py")["watch"]
        async with task(watch(lambda *words: shown.append(words), user), valkey):
            (run,) = await on_a_thread(finished, address, user)
            await until(lambda: shown)
        return run

    with valkey.pubsub(ignore_subscribe_messages=True) as spy:
        spy.psubscribe(KEYS)
        spy.get_message(timeout=1)
        finished(address, None)
        assert spy.get_message(timeout=0.2) is None
        assert shown == [] and [(asyncio.run(main()), "a word")] == shown
        (key,) = valkey.keys(KEYS)
        assert 0 < valkey.ttl(key) <= 30
        assert spy.get_message(timeout=BOUND_S)["channel"] == key


def test_without_valkey_or_for_another_topic_it_is_refused(settings: Any, user: User) -> None:
    with pytest.raises(InvalidInputError, match=r"agent\.stream/<agent key>, not agent\.progress/1"):
        asyncio.run(anext(world.Runtime().events(TopicId("agent.progress", "1"))))

    settings.RAVI = {**settings.RAVI, "ENGINE": "manual", "STREAM_URL": None}
    with pytest.raises(UnsupportedError, match="add run="):
        asyncio.run(anext(world.Runtime().events(TOPIC)))
    client = APIClient()
    client.force_authenticate(user)
    answer = client.get("/ravi/topics/agent.stream/shop/events/", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 501 and "run=" in answer.content.decode()
