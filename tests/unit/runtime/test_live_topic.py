"""`agent.stream/<key>` without a run: the text of all runs of an agent, live, to each reader what it may see."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
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
    StreamEvent,
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

TOPIC = TopicId("agent.stream", "live")


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ada")


@pytest.fixture(autouse=True)
def valkey() -> Iterator[redis.Redis]:
    """Without the readers of an earlier test."""
    with redis.Redis.from_url(world.stream_url()) as client:
        client.delete(*client.keys("ravi:{live:*"), "none")
        yield client


def agent(*answers: Any, **options: Any) -> str:
    model = ScriptedModel(list(answers))
    return str(register(ReActAgent("live", model=model, **options), access="authenticated", replace=True).id)


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


class Reader:
    """Reads the topic's events while runs end on another thread."""

    def __init__(self, **of: Any) -> None:
        self.of, self.read = of, list[StreamEvent]()

    async def until(self, wanted: Callable[[], Any], events: Any) -> None:
        async with asyncio.timeout(BOUND_S):
            while not wanted():
                self.read.append(await anext(events))

    def follow(self, story: Callable[[Any], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with aclosing(world.Runtime().events(TOPIC, **self.of)) as events:
                first = asyncio.ensure_future(anext(events))
                async with asyncio.timeout(BOUND_S):
                    while not _is_read():
                        await asyncio.sleep(0.01)
                return await story(_Begun(first, events))

        return asyncio.run(main())

    @property
    def runs(self) -> set[str | None]:
        return {event.run_id for event in self.read}

    @property
    def ends(self) -> list[CompletionEvent]:
        return [event for event in self.read if isinstance(event, CompletionEvent)]


class _Begun:
    """An iterator whose first item is awaited already."""

    def __init__(self, first: Any, rest: Any) -> None:
        self._first, self._rest = first, rest

    async def __anext__(self) -> Any:
        first, self._first = self._first, None
        return await (first or anext(self._rest))


def _is_read() -> bool:
    with redis.Redis.from_url(world.stream_url()) as client:
        (key,) = client.keys("ravi:{live:*") or [b""]
        return bool(key) and client.pubsub_numsub(key)[0][1] > 0


def test_a_reader_gets_the_runs_that_the_list_of_runs_shows(user: User) -> None:
    eve, boss = User.objects.create_user("eve"), User.objects.create_superuser("boss")
    for who in (user, eve, boss, None):
        address, reader = agent("one", "two", "three"), Reader(user=who)

        async def story(events: Any, address: str = address, reader: Reader = reader) -> None:
            await on_a_thread(finished, address, eve, user, boss)
            (last,) = await on_a_thread(finished, address, reader.of["user"])
            await reader.until(lambda: last in {event.run_id for event in reader.ends}, events)

        reader.follow(story)
        client = APIClient()
        client.force_authenticate(who or boss)
        listed = [row["id"] for row in client.get("/ravi/runs/").json()["results"]]
        assert reader.runs == {*listed}
        assert all(event.seq == 0 and str(event.agent_id) == address for event in reader.read)
        Run.objects.all().delete()


class HaltingModel:
    """Says "before", waits, and says "after"."""

    name = "halting"

    def __init__(self) -> None:
        self.is_let = False

    async def stream(self, *args: Any) -> AsyncIterator[ModelEvent]:
        yield TextDelta(text="before")
        while not self.is_let:
            await asyncio.sleep(0.01)
        yield TextDelta(text="after")
        yield ModelResponse.of([TextBlock(text="after")])


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_rights_are_read_once_a_run_and_again_after_a_minute(
    user: User, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    sight, looks, reader = world.live_sight, list[str](), Reader(user=user)
    world.patch(monkeypatch, "live_sight", lambda pk, run: looks.append(str(run)) or sight(pk, run))
    world.patch(monkeypatch, "LIVE_RIGHTS_S", seconds)
    model = HaltingModel()
    address = str(register(ReActAgent("live", model=model), access="authenticated", replace=True).id)

    async def story(events: Any) -> None:
        running = asyncio.ensure_future(on_a_thread(finished, address, user))
        await reader.until(lambda: reader.read, events)
        await on_a_thread(lambda: User.objects.filter(id=user.id).update(is_active=False))
        model.is_let = True
        (run,) = await running
        if seconds:
            await reader.until(lambda: reader.ends, events)
            assert looks == [run]
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(events)

    reader.follow(story)


def test_hidden_values_stay_hidden(user: User) -> None:
    @tool(visible="staff")
    def look_up(number: int) -> str:
        """Look up."""
        return "a secret"

    call = ToolUseBlock(tool_name="look_up", arguments={"number": 7}, call_id="c")
    seen = []
    for who in (user, None):
        address, reader = agent([call], "done", tools=[look_up]), Reader(user=who)

        async def story(events: Any, address: str = address, reader: Reader = reader) -> None:
            await on_a_thread(finished, address, user)
            await reader.until(lambda: len(reader.ends) == 2, events)

        reader.follow(story)
        seen.append(reader.ends[0].content[0].arguments)
    assert seen == [{}, {"number": 7}]


def test_a_reader_that_is_behind_gets_one_gap_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world.patch(monkeypatch, "LIVE_BEHIND", 6000)
    address, reader = agent("x" * 2000), Reader()  # a run is two frames, together below the limit

    async def story(events: Any) -> None:
        await on_a_thread(finished, address, None)
        await reader.until(lambda: reader.ends, events)
        for _ in range(3):  # the loop goes on, the reader does not
            (last,) = await on_a_thread(finished, address, None)
        (last,) = await on_a_thread(finished, address, None)
        await reader.until(lambda: last in {event.run_id for event in reader.ends}, events)
        assert [type(event) for event in reader.read[2:]] == [StreamGap, TextDelta, CompletionEvent]

    reader.follow(story)


def test_frames_are_published_once_more_only_while_there_is_a_reader(valkey: redis.Redis) -> None:
    """The key has a TTL, which readers renew; what is made again from the journal is not published again."""
    with valkey.pubsub(ignore_subscribe_messages=True) as spy:
        spy.psubscribe("ravi:{live:*")
        spy.get_message(timeout=1)
        address, reader = agent("one", "two"), Reader()
        finished(address, None)
        assert spy.get_message(timeout=0.2) is None

        async def story(events: Any) -> None:
            await on_a_thread(finished, address, None)
            await reader.until(lambda: reader.ends, events)

        reader.follow(story)
        (key,) = valkey.keys("ravi:{live:*")
        assert 0 < valkey.ttl(key) <= 30
        assert spy.get_message(timeout=BOUND_S)["channel"] == key


def test_after_a_lost_connection_comes_a_gap(monkeypatch: pytest.MonkeyPatch, valkey: redis.Redis) -> None:
    address, reader = agent(*["words"] * 9), Reader()

    async def story(events: Any) -> None:
        await on_a_thread(finished, address, None)
        await reader.until(lambda: reader.ends, events)
        for client in valkey.client_list(_type="pubsub"):
            valkey.client_kill(client["addr"])
        await reader.until(lambda: isinstance(reader.read[-1], StreamGap), events)
        (last,) = await on_a_thread(finished, address, None)
        await reader.until(lambda: last in reader.runs, events)

    reader.follow(story)
    assert any(isinstance(event, TextDelta | CompletionEvent) for event in reader.read[-1:])


def test_without_valkey_or_for_another_topic_it_is_refused(settings: Any, user: User) -> None:
    with pytest.raises(InvalidInputError, match=r"agent\.stream/<agent key>, not agent\.progress/1"):
        asyncio.run(anext(world.Runtime().events(TopicId("agent.progress", "1"))))

    settings.RAVI = {**settings.RAVI, "ENGINE": "manual", "STREAM_URL": None}
    with pytest.raises(UnsupportedError, match="add run="):
        asyncio.run(anext(world.Runtime().events(TOPIC)))
    client = APIClient()
    client.force_authenticate(user)
    answer = client.get("/ravi/topics/agent.stream/live/events/", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 501 and "run=" in answer.content.decode()


def test_the_pages_wall_shows_what_an_agent_says(user: User) -> None:
    address = str(register(ReActAgent("shop", model=ScriptedModel("a word")), access="authenticated").id)
    shown: list[tuple[str, str]] = []

    async def main() -> list[str]:
        watch = Page("programs").run("shop/wall.py")["watch"]
        wall = asyncio.ensure_future(watch(lambda *words: shown.append(words), user))
        async with asyncio.timeout(BOUND_S):
            while not _is_read():
                await asyncio.sleep(0.01)
            runs: list[str] = await on_a_thread(finished, address, user)
            while not shown:
                await asyncio.sleep(0.01)
        wall.cancel()
        await asyncio.wait([wall])
        return runs

    assert [asyncio.run(main())[0]] == [run for run, _ in shown] and shown[0][1] == "a word"
