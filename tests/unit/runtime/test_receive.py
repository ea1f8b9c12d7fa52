"""`ctx.receive`: messages that come while the code runs are given once, and the same ones on every replay."""

import asyncio
from typing import Any

import pytest

from ravi_django import register, signal, tool
from ravi_django.kernel import ChatMessage, InvalidInputError, RunContext
from ravi_django.models import InboxMessage, JournalEntry, Run, Status
from ravi_django.testing import FakeClock, ScriptedModel, run_until_idle
from tests.support import world
from tests.support.arriving import arrive
from tests.support.patience import BOUND_S
from tests.support.runs import CodeAgent, code, drive, every_death, in_background, make_run, take_over
from tests.support.world import DatabaseThreads, LoopConnection, rehearse

pytestmark = pytest.mark.django_db(transaction=True)


def texts(messages: Any) -> list[str]:
    return [message.payload.message.text for message in messages]


def received(run: Run) -> list[tuple[str, int | None]]:
    rows = JournalEntry.objects.filter(run=run, kind="msg.received").order_by("seq")
    return list(rows.values_list("path", "read_upto"))


def places(run: Run) -> list[int]:
    return list(InboxMessage.objects.filter(run=run).order_by("id").values_list("id", flat=True))


class Reader:
    """Reads after every tool call of its own; what came is in `rounds`, a list for each call of the code."""

    def __init__(self, step: Any) -> None:
        self.rounds: list[list[Any]] = []
        self.last: list[list[Any]] = []  # of the last lease
        self._ctx: Any = None
        code(self.run, tools=[step])

    async def run(self, ctx: Any, inbox: Any) -> str:
        found: list[Any] = [texts(inbox)]
        if ctx is not self._ctx:
            self._ctx, self.last = ctx, []
        self.rounds.append(found)
        self.last.append(found)
        for name in "ab":
            await ctx.tool("step", name=name)
            found.append(texts(await ctx.receive()))
        await ctx.tool("step", name="end")
        return "+".join(",".join(each) for each in found)


def test_what_has_come_is_given_once_and_is_no_next_inbox(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(step)
    run = make_run()

    def come(name: str, then: Any) -> None:
        if name == "a":
            arrive(run, "one")
            arrive(run, "two")

    arriving_at(monkeypatch, come)
    drive(run)

    assert reader.rounds == [[["hi"], ["one", "two"], []]]
    assert (run.status, run.output) == (Status.COMPLETED, "hi+one,two+")
    assert received(run) == [("2", places(run)[2]), ("4", places(run)[2])]


def arriving_at(monkeypatch: pytest.MonkeyPatch, come: Any) -> None:
    """`come(name, path)` right before the row of each tool call is written; on a database thread."""
    original = world.append

    def append(lease: Any, entries: Any, turns: Any = ()) -> int:
        for entry in entries:
            if entry.kind == "tool.call" and entry.phase == "result":
                come(entry.request["arguments"]["name"], entry.path)
        return original(lease, entries, turns)

    world.patch(monkeypatch, "append", append)
    world.patch(monkeypatch, "may_be_late", lambda *call: False)
    monkeypatch.setattr(LoopConnection, "is_idle", False)  # it would append beside it


def test_after_a_crash_the_very_same_are_given(step: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message comes before each row is written, another while nobody drives the run."""
    runs: list[Run] = []
    readers: list[Reader] = []
    recorded: dict[str, Any] = {}
    came: set[str] = set()

    def come(name: str, path: str) -> None:
        if name not in came:
            came.add(name)
            arrive(runs[-1], f"at {name}")

    def died() -> None:
        recorded.update(received(runs[-1]))
        arrive(runs[-1], "meanwhile")

    def story(drive: Any) -> Run:
        came.clear()
        recorded.clear()
        readers.append(Reader(step))
        runs.append(make_run())
        drive(runs[-1], meanwhile=died)
        run_until_idle()
        return runs[-1]

    arriving_at(monkeypatch, come)
    for run, _ in every_death(clock, story):
        assert run.status == Status.COMPLETED, run.error
        assert dict(received(run)).items() >= recorded.items()
        before, after = readers[-1].rounds[0], readers[-1].last[0]
        for number, path in enumerate(("2", "4"), 1):
            if path in recorded:
                assert after[number] == before[number], "what was recorded is given again as it was"
        given = [text for found in readers[-1].last for each in found for text in each]
        bodies = InboxMessage.objects.filter(run=run).values_list("body", flat=True)
        assert given == [body["payload"]["message"]["content"][0]["text"] for body in bodies], "all, once, in order"


def test_what_comes_behind_the_last_look_is_the_next_inbox(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(step)
    run = make_run()
    late: list[str] = []

    def come(name: str, path: str) -> None:
        if name == "end" and not late:
            late.append("late")
            arrive(run, "late")

    arriving_at(monkeypatch, come)
    drive(run)
    run_until_idle()

    run.refresh_from_db()
    assert run.status == Status.COMPLETED
    assert reader.rounds[-1][0] == ["late"]
    assert [found for found in reader.rounds if found[0] == ["hi"]][-1][1:] == [[], []]


def test_what_was_received_is_left_behind_by_a_new_generation_and_the_rest_comes_along(step: Any) -> None:
    inboxes: list[list[str]] = []

    async def story(ctx: Any, inbox: Any) -> None:
        inboxes.append([getattr(message.payload, "data", None) or message.payload.message.text for message in inbox])
        if len(inbox) and inboxes[-1] == ["hi"]:
            await ctx.sleep_until_signal("go")
            inboxes.append(texts(await ctx.receive()))
            await ctx.tool("step", name="wait")
            await ctx.continue_as_new(1)
        assert await ctx.receive() == []

    code(story, tools=[step])
    run = drive(make_run())
    arrive(run, "read")
    signal(run, "go")
    drive(run, dies="end")  # the signal and the tool are recorded: it has read
    arrive(run, "unread")
    with FakeClock() as clock:
        take_over(clock, run)
    drive(run)

    assert run.status == Status.COMPLETED
    assert inboxes[-1] == ["unread"]
    assert inboxes.count(["read"]) == 2

    async def begins_with_nothing(ctx: Any, inbox: Any) -> None:
        if inbox:
            await ctx.continue_as_new()
        inboxes.append(await ctx.receive())

    code(begins_with_nothing)
    drive(make_run())
    run_until_idle()
    assert inboxes[-1] == [], "nothing of the generation before"


def test_two_tasks_that_read_at_once_are_given_no_message_twice(step: Any, clock: FakeClock) -> None:
    tried: list[Any] = []

    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.tool("step", name="a")
        if not tried:
            await asyncio.to_thread(arrive_many)
        both = await asyncio.gather(*(ctx.receive() for _ in range(3)))
        tried.append([texts(each) for each in both])
        await ctx.tool("step", name="b")

    def arrive_many() -> None:
        in_background(lambda: [arrive(run, str(number)) for number in range(3)]).result(BOUND_S)

    code(story, tools=[step])
    run = make_run()
    drive(run, dies="end")
    take_over(clock, run)

    assert sorted(text for each in tried[0] for text in each) == ["0", "1", "2"]
    assert tried[1] == tried[0]


def test_a_model_call_says_what_the_code_had_seen() -> None:
    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.llm([ChatMessage.of("user", "a")])
        await ctx.receive()
        await ctx.llm([ChatMessage.of("user", "b")])

    class Model(ScriptedModel):
        async def stream(self, messages: Any, options: Any, meta: Any) -> Any:
            if messages[-1].text == "a":
                await asyncio.to_thread(lambda: in_background(arrive, run_of, "new").result(BOUND_S))
            async for event in super().stream(messages, options, meta):
                yield event

    code(story, model=Model("ok"))
    run_of = make_run()
    drive(run_of)

    old, new = places(run_of)
    calls = JournalEntry.objects.filter(run=run_of, kind="llm.call").order_by("seq")
    assert list(calls.values_list("read_upto", flat=True)) == [old, new]


def test_a_look_is_one_query_and_a_replay_of_it_none(step: Any, monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    asked: list[str] = []
    original = world.inbox_after
    world.patch(monkeypatch, "inbox_after", lambda *args: asked.append("live") or original(*args))
    Reader(step)
    run = make_run()

    drive(run, dies="end")
    assert len(asked) == 2

    take_over(clock, run)
    assert (run.status, len(asked)) == (Status.COMPLETED, 2)


def test_a_tool_reads_no_messages_of_the_agents() -> None:
    @tool
    async def look(ctx: RunContext) -> str:
        """Look."""
        try:
            return str(await ctx.receive())
        except InvalidInputError as error:
            return f"{error.field}: {error}"

    async def story(ctx: Any, inbox: Any) -> Any:
        with pytest.raises(InvalidInputError):
            await ctx.pin("x", ctx.receive)
        return (await ctx.tool("look")).text

    code(story, tools=[look])
    run = drive(make_run())

    assert run.output is not None and run.output.startswith("receive: the run's messages are for the agent's own code")


def waiting_run() -> Run:
    async def story(ctx: Any, inbox: Any) -> Any:
        return await ctx.sleep_until_signal("go")

    register(CodeAgent(story, key="other"))
    return drive(make_run("test/other"))


def test_a_wait_for_a_signal_can_be_over_by_a_message(clock: FakeClock) -> None:
    async def story(ctx: Any, inbox: Any) -> Any:
        found: list[Any] = []
        for _ in range(3):
            payload = await ctx.sleep_until_signal("go", or_message=True)
            found.append(texts(await ctx.receive()) if payload is None else payload)
        return found

    code(story)
    run = drive(make_run())
    assert run.status == Status.SUSPENDED
    other = waiting_run()
    for one in (run, other):
        arrive(one, "one")
        assert drive(one).status == Status.SUSPENDED
    assert not JournalEntry.objects.filter(run=other, kind="signal", phase="result").exists(), "it ends no other wait"
    signal(run, "go", {"n": 1})
    arrive(run, "two")
    drive(run, dies=2, written=True)

    take_over(clock, run)

    assert (run.status, run.output) == (Status.COMPLETED, '[["one"],{"n":1},["two"]]')


def test_a_rehearsal_reads_nothing(step: Any) -> None:
    async def story(ctx: Any, inbox: Any) -> None:
        await ctx.receive()
        await ctx.sleep_until_signal("go")
        await ctx.receive()

    code(story)
    run = drive(make_run())
    signal(run, "go")
    run = Run.objects.select_related("session", "root", "parent").get(id=run.id)

    async def look() -> Any:
        database = DatabaseThreads(1)
        try:
            return await rehearse(run, database)
        finally:
            database.close()

    assert asyncio.run(look()).error is None
