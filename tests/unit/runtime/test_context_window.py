"""What a model is shown of a long conversation: what it costs to read, and that a crash changes nothing of it."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django.agents.compaction import (
    CompactionPipeline,
    SelectiveToolCallCompaction,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposed,
    ToolResultCompaction,
)
from ravi_django.agents.context import ContextConfig, DjangoHistoryProvider
from ravi_django.agents.summary import make_summary
from ravi_django.kernel import AgentId, ChatMessage
from ravi_django.models import Session, Turn
from tests.support import world
from tests.support.conversations import tool_row
from tests.support.world import history_append, read_window

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
        assert 10 < len(window) <= 101


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
    told = Turn.objects.filter(session=session, agent=str(AGENT), keeps__isnull=False).order_by("-position")
    assert "ravi_turn_summary" in told[:1].explain()
