"""Reading a stream: everything in order, from where the reader left off, until the end."""

import asyncio

import pytest

from ravi_django.kernel import ChatMessage, TextDelta
from ravi_django.testing import ScriptedModel
from tests.support import world
from tests.support.patience import BOUND_S
from tests.support.runs import auntil, code, drive, leased, make_run
from tests.support.world import DatabaseBuffer, Engine, ValkeyBuffer

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["valkey", "database"])
def buffer(request, monkeypatch):
    found = DatabaseBuffer() if request.param == "database" else ValkeyBuffer(request.getfixturevalue("valkey_url"))
    world.patch(monkeypatch, "get_buffer", lambda: found)
    return found


class Slow(ScriptedModel):
    """Says a word each time that it is let."""

    def __init__(self, *words):
        super().__init__(["".join(words)])
        self.words = words
        self.let = asyncio.Queue()

    async def stream(self, messages, options, meta):
        *_, response = [event async for event in super().stream(messages, options, meta)]
        for word in self.words:
            await self.let.get()
            yield TextDelta(text=word)
        yield response


async def ask(ctx, inbox):
    return (await ctx.llm([ChatMessage.of("user", "hi")])).text


def test_followers_get_frames_as_they_come_until_done(buffer):
    async def main():
        model = Slow("one ", "two ", "three")
        code(ask, model=model)
        engine = Engine()
        seen = []

        async def watch():
            async for frame in world.events_follow(run.id):
                seen.append(frame)

        watching = asyncio.create_task(watch())
        driving = asyncio.create_task(engine.drive(run.id))
        for number, word in enumerate(model.words):
            assert not watching.done()
            model.let.put_nowait(1)
            said = "".join(model.words[: number + 1])
            await auntil(lambda said=said: "".join(frame.get("text", "") for frame in seen) == said)
            assert word in said
        await asyncio.wait_for(driving, BOUND_S)
        await engine.close()
        await asyncio.wait_for(watching, BOUND_S)
        return seen

    run = make_run()

    seen = asyncio.run(main())
    assert [frame["seq"] for frame in seen] == list(range(1, len(seen) + 1))
    steps = [frame.get("step", frame["type"]) for frame in seen if frame["type"] != "text.delta"]
    assert steps == ["started", "thinking", "completion", "done", "stream.done"]
    assert seen[-1] == {**seen[-1], "reason": "completed", "run": str(run.id), "parent": None}


def test_followers_of_one_run_read_each_frame_together(valkey_url, monkeypatch):
    buffer, reads = ValkeyBuffer(valkey_url), []
    world.patch(monkeypatch, "get_buffer", lambda: buffer)
    read = buffer.read
    monkeypatch.setattr(buffer, "read", lambda *args: reads.append(args) or read(*args))

    async def main():
        model = Slow(*"abcdefgh")
        for _ in model.words:
            model.let.put_nowait(1)
        code(ask, model=model)

        async def watch():
            return [frame["seq"] async for frame in world.events_follow(run.id)]

        watching = [asyncio.create_task(watch()) for _ in range(20)]
        await auntil(lambda: reads)
        engine = Engine()
        await asyncio.wait_for(engine.drive(run.id), BOUND_S)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*watching), BOUND_S)

    run = make_run()

    first, *others = asyncio.run(main())
    assert others == [first] * 19
    assert len(reads) < 5 * len(first)  # each by itself: 20 times, and again to find nothing more


def test_a_reader_that_comes_back_gets_exactly_the_rest(buffer):
    code(ask, model=ScriptedModel(["hello"]))
    run = drive(make_run())
    everything, _ = world.events_page(run.id)

    async def rest(after):
        return [frame async for frame in world.events_follow(run.id, after)]

    for after in (0, 1, 3, 5, len(everything)):
        assert asyncio.run(asyncio.wait_for(rest(after), BOUND_S)) == everything[after:], after


def test_pages_have_a_limit_and_say_when_they_are_the_last(buffer):
    code(ask, model=ScriptedModel(["hello"]))
    run = drive(make_run())
    total = len(world.events_page(run.id)[0])

    pages, after = [], 0
    while True:
        found, done = world.events_page(run.id, after, limit=2)
        pages.append(len(found))
        if done:
            break
        after = found[-1]["seq"]

    assert sum(pages) == total
    assert max(pages) == 2


def test_a_run_that_has_not_begun_has_an_empty_page_that_is_not_the_last(buffer):
    run = make_run()
    assert world.events_page(run.id) == ([], False)
    world.requeue(leased(run))
    assert world.events_page(run.id)[1] is False


def test_an_end_that_is_published_while_it_is_looked_for_is_read(buffer, monkeypatch):
    code(ask, model=ScriptedModel("hello"))
    run = drive(make_run())
    late = []
    read = buffer.read

    def read_before_it_was_there(*asked):
        if late:
            return read(*asked)
        late.append(1)
        return []

    monkeypatch.setattr(buffer, "read", read_before_it_was_there)
    found, done = world.events_page(run.id)
    assert done and found[-1]["type"] == "stream.done"
