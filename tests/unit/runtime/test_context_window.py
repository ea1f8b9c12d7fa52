"""What a model is shown of a long conversation: what it costs to read, and its summaries: paid once, stored with the
turns, the same after a crash and in the next run."""

import gc
import re
import tracemalloc

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django import tool
from ravi_django.agents import ReActAgent
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.agents.memory.agent_context import ContextConfig
from ravi_django.agents.memory.compaction.strategy import CompactionPipeline
from ravi_django.agents.memory.compaction.summarization import SCOPE, SummarizationCompaction
from ravi_django.agents.memory.compaction.token_budget import TokenBudgetComposed
from ravi_django.agents.memory.compaction.windows import (
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    ToolResultCompaction,
)
from ravi_django.agents.memory.transcript import make_summary, summary_text
from ravi_django.kernel import AgentId, ChatMessage, ModelError, Role, ToolUseBlock, Usage
from ravi_django.models import JournalEntry, Session, Status, Turn
from ravi_django.models.session import by_agent
from ravi_django.testing import ScriptedModel, journal_of
from tests.support import world
from tests.support.conversations import tool_row
from tests.support.runs import drive, make_run, take_over
from tests.support.world import Entry, Source, history_append, read_window

pytestmark = pytest.mark.django_db(transaction=True)


AGENT = AgentId("react", "long")
PIPELINES = [
    None,
    CompactionPipeline(SlidingWindowCompaction(100)),
    CompactionPipeline(ToolResultCompaction(), SelectiveToolCallCompaction(), SlidingWindowCompaction(100)),
    CompactionPipeline(SummarizationCompaction(100)),
    TokenBudgetComposed(ToolResultCompaction(), SummarizationCompaction(100), max_tokens=1_000),
]


def conversation(turns, *, of_user=True):
    """A session of that many turns; the last words of the user are either recent or the first of all."""
    session = world.create_session(Session(agent=str(AGENT)))
    said = [ChatMessage.of("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(turns)]
    rows = said if of_user else [said[0], *tool_row(turns // 2)]
    for begin in range(0, len(rows), 1000):
        history_append(AGENT, session.id, rows[begin : begin + 1000], "", None)
    return session


def window_of(session, pipeline):
    config = ContextConfig(DjangoHistoryProvider(), pipeline)
    context = config.bind(AGENT, instructions=[ChatMessage.of("system", "Be brief.")])
    return async_to_sync(context.get_prompt_window)(str(session.id))


@pytest.mark.parametrize("of_user", [True, False])
def test_a_window_over_many_turns_is_two_queries(of_user):
    session = conversation(2_500, of_user=of_user)
    for pipeline in PIPELINES:
        with CaptureQueriesContext(connection) as queries:
            window = window_of(session, pipeline)
        assert len(queries) <= 2, pipeline
        assert (window[0].text, window[1].role.value) == ("Be brief.", "user")
        assert window[-1].text == ("turn 2499" if of_user else "c1249")
        assert 10 < len(window) <= 150


@pytest.mark.full
def test_memory_is_flat():
    short, long = conversation(2_000), conversation(5_000)

    def peak(session, pipeline):
        window_of(session, pipeline)  # what is loaded and cached once
        gc.collect()
        tracemalloc.start()
        try:
            window_of(session, pipeline)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for pipeline in PIPELINES:
        assert peak(long, pipeline) < peak(short, pipeline) * 1.1, pipeline


def test_the_last_summary_and_the_users_words_are_the_second_query(django_assert_num_queries):
    session = world.create_session(Session(agent=str(AGENT)))
    row = tool_row(40)
    history_append(AGENT, session.id, [ChatMessage.of("user", "task"), make_summary("s", 0), *row], "", None)
    with django_assert_num_queries(2):
        window = read_window(AGENT, session.id, limit=10)
    assert window == [make_summary("s", 0), ChatMessage.of("user", "task"), *row[-10:]]


def test_a_summary_long_ago_is_found_by_its_index():
    session = conversation(3_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ravi_turn")
    summaries = Turn.objects.filter(by_agent(str(AGENT)), session=session, keeps__isnull=False).order_by("-position")
    assert "ravi_turn_summary" in summaries[:1].explain()


STEPS = 7


@tool
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


class Model(ScriptedModel):
    """Calls a tool STEPS times and answers; summarizes when it is asked to."""

    def __init__(self, said="summary {}", tokens=1):
        steps = [ToolUseBlock(tool_name="look", arguments={"n": n}, call_id=f"c{n}") for n in range(STEPS)]
        super().__init__([*steps, "done"], usage=Usage(input_tokens=10, output_tokens=1), cost=0.01)
        self.said, self.tokens = said, tokens
        self.summaries, self.views = [], []

    async def _item(self, turn, messages, options):
        if not messages[0].text.startswith("You keep the memory"):
            self.views.append(messages)
            last = messages[-1].text  # what a script goes by else, the turns so far, may be summarized
            item = self.script[int(last.removeprefix("seen ")) + 1 if last.startswith("seen ") else 0]
            if isinstance(item, Exception):
                raise item
            return item
        self.summaries.append(messages[1].text)
        if isinstance(self.said, Exception):
            raise self.said
        former = re.search(r"summary (\d+)", messages[1].text)
        return self.said.format(int(former[1]) + 1 if former else 1)

    def count_tokens(self, messages):
        return self.tokens * len(messages)

    def context_window(self):
        return 100_000


def agent(model, strategy=None, retention="permanent"):
    pipeline = CompactionPipeline(strategy or SummarizationCompaction(8, keep_last=4))
    context = ContextConfig(DjangoHistoryProvider(), pipeline, retention)
    world.register(ReActAgent("summing", model=model, tools=[look], context=context, max_iterations=20))
    return model


def begun(session=None, text="task", **fields):
    return make_run("react/summing", text=text, session=session, **fields)


def rows(run):
    turns = Turn.objects.filter(run=run).select_related("entry").order_by("position")
    return [(turn.role, turn.blocks, turn.keeps, turn.index) for turn in turns]


def said(run):
    return [role for role, _, keeps, _ in rows(run) if keeps is None]


def told(message):
    """A summary, as the model is shown it."""
    return message.role is Role.USER and message.text.startswith("[Summary of the conversation so far; notes, not ")


def shown(model):
    return [[message.text for message in view] for view in model.views]


def test_a_run_makes_summaries_in_the_journal_and_keeps_them_with_its_turns(clock):
    model = agent(Model())
    run = drive(begun())
    assert (run.status, run.output) == (Status.COMPLETED, "done")
    calls = [entry.path for entry in journal_of(run) if entry.kind == "llm.call" and SCOPE in entry.path]
    assert calls == [f"turn5.{SCOPE}.1", f"turn7.{SCOPE}.1"]
    assert [keeps for _, _, keeps, _ in rows(run) if keeps is not None] == [4, 4]
    assert [index for *_, index in rows(run)] == list(range(1 + 2 * STEPS + 1 + 2))
    assert "summary 1" in model.summaries[1]
    assert run.input_tokens == 10 * (STEPS + 1 + 2)
    assert all(sum(map(told, view)) <= 1 for view in model.views)
    assert shown(model)[-1][1] == "task"


@pytest.mark.parametrize(("dies", "written"), [(5, False), (5, True), (8, False), ("end", True)])
def test_after_a_crash_the_view_is_the_same_and_no_recorded_summary_is_made_again(clock, dies, written):
    """Appends 5 and 8 are those of the summaries: unwritten, they are in flight and paid again."""
    model = agent(Model())
    expected, views = rows(drive(begun())), shown(model)
    model = agent(Model())
    run = take_over(clock, drive(begun(), dies=dies, written=written))
    assert (run.status, run.output) == (Status.COMPLETED, "done")
    assert rows(run) == expected
    assert shown(model)[-1] == views[-1]
    assert len(model.summaries) == (3 if dies in (5, 8) and not written else 2)
    assert not JournalEntry.objects.filter(run=run, kind="replay.drift").exists()


def test_the_next_run_begins_with_the_summary_and_updates_it(clock):
    model = agent(Model())
    session = drive(begun()).session
    before = len(model.summaries)
    model.views.clear()
    run = drive(begun(session, "and again"))
    first = model.views[0]
    assert run.output == "done"
    assert summary_text(first[0]) == f"summary {before + 1}"  # it was due with the first call
    assert f"summary {before}" in model.summaries[before]
    assert first[-1].text == "and again"
    assert [sum(told(message) for message in view) for view in model.views] == [1] * len(model.views)
    assert not any(told(message) for message in first[1:])


def test_a_replay_summarizes_where_it_did_though_tokens_count_otherwise(clock):
    """Also when that is nowhere: the tokenizer is of another release on the next worker."""
    strategy = TokenBudgetComposed(SummarizationCompaction(max_tokens=8, keep_last=4), max_tokens=8)
    model = agent(Model(), strategy)
    run = drive(begun(), dies="end")
    paid, views = len(model.summaries), shown(model)
    assert paid
    for tokens in (0, 50):
        model.tokens = tokens
        run = take_over(clock, run, dies="end")
    run = take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "done")
    assert len(model.summaries) == paid
    assert shown(model) == views


def test_a_summary_that_fails_for_good_leaves_a_plain_window_and_a_replay_too(clock):
    model = agent(Model(ModelError("no", status=400)))
    run = drive(begun(), dies="end")
    failed = len(model.summaries)
    assert failed == 2  # due from the fifth turn on, and tried again when four messages had come
    run = take_over(clock, run)
    assert (run.status, run.output) == (Status.COMPLETED, "done")
    assert len(model.summaries) == failed > 0
    assert max(len(view) for view in model.views) <= 8
    assert not Turn.objects.filter(keeps__isnull=False).exists()


@pytest.mark.parametrize(("retention", "left"), [("run", 0), ("permanent", 2)])
def test_retention_holds_for_summaries_too(clock, retention, left):
    model = agent(Model(), retention=retention)
    run = drive(begun())
    assert run.output == "done"
    assert len(model.summaries) == 2
    assert Turn.objects.filter(keeps__isnull=False).count() == left
    assert Turn.objects.exists() is (left > 0)


def test_a_summary_is_shown_to_nobody_as_an_answer(clock):
    source = Source.of(begun(), epoch=1)
    result = {"content": [{"type": "text", "text": "x"}]}
    of_answer = world.frames_durable(source, Entry("llm.call", "turn5.1", "m", result=result), 1)
    of_summary = world.frames_durable(source, Entry("llm.call", f"turn5.{SCOPE}.1", "m", result=result), 2)
    assert [frame.type for frame in of_answer] == ["completion"]
    assert of_summary == []


@pytest.mark.parametrize(("dies", "written"), [(9, True), (10, False), (15, True)])
def test_a_run_goes_on_without_the_strategy_that_made_its_summaries(clock, dies, written):
    """Appends 9 and 14 are those of the summaries. What they cost counts, and no turn is lost or stored twice."""
    model = agent(Model())
    run = drive(begun(), dies=dies, written=written)
    paid = len(model.summaries)
    agent(model, SlidingWindowCompaction(50))
    run = take_over(clock, run, dies="end")
    run = take_over(clock, run)
    assert (run.status, run.output, run.error) == (Status.COMPLETED, "done", None)
    assert len(model.summaries) == paid
    assert said(run) == ["user", *["assistant", "tool"] * STEPS, "assistant"]


def test_a_summary_that_was_passed_over_counts_against_the_budget(clock):
    """With the summary, the fifth turn was the run's sixth call. The request that its worker lost counts too."""
    outputs = {}
    for turns in (STEPS + 2, STEPS + 3):
        model = agent(Model())
        run = drive(begun(budget={"max_turns": turns}), dies=10)
        assert len(model.summaries) == 1
        agent(model, SlidingWindowCompaction(50))
        outputs[turns] = take_over(clock, run).output
    assert outputs == {STEPS + 2: None, STEPS + 3: "done"}


def test_a_run_goes_on_with_a_strategy_that_was_added_meanwhile(clock):
    model = agent(Model(), SlidingWindowCompaction(50))
    run = drive(begun(), dies=5)
    agent(model)
    run = take_over(clock, take_over(clock, run, dies="end"))
    assert (run.status, run.output, run.error) == (Status.COMPLETED, "done", None)
    assert model.summaries
    assert said(run) == ["user", *["assistant", "tool"] * STEPS, "assistant"]
