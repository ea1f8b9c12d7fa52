"""What fails says so, once, with its traceback; a person who looks at the log at night finds the line."""

import logging
import logging.config
import threading
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied

from ravi_django import tool
from ravi_django.kernel import DeterminismError, ToolRefused, TransientError
from ravi_django.models import Run
from ravi_django.signals import run_failed
from tests.support.docs import Page
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def page() -> Any:
    """Connected before `signalled`, so that it is called first."""
    page = Page("errors").run("shop/alerts.py")
    yield page
    run_failed.disconnect(page["tell_the_team"])


@pytest.fixture
def signalled(page: Any) -> Any:
    arrived, calls = threading.Event(), []

    def receiver(sender: Any, run: Run, status: str, **kwargs: Any) -> None:
        calls.append((str(run.id), run.status, status, threading.current_thread().name))
        arrived.set()

    run_failed.connect(receiver)
    yield lambda: arrived.wait(10) and calls
    run_failed.disconnect(receiver)


@pytest.mark.parametrize(("error", "status"), [(KeyError("order"), "failed"), (DeterminismError("no"), "blocked")])
def test_a_run_that_fails_has_a_traceback_and_a_signal(
    page: Any, signalled: Any, caplog: Any, error: Exception, status: str
) -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        raise error

    code(story)
    run = drive(make_run())

    (line,) = [record for record in caplog.records if record.name == "ravi.runs"]
    assert (line.levelno, line.exc_info[1], line.run, line.agent) == (logging.ERROR, error, str(run.id), "test/code")
    assert signalled() == [(str(run.id), status, status, "ravi-run-failed")]
    assert [text.partition(": ")[0] for text in page["alerts"]] == [f"test/code {status}"]


def test_the_page_s_handler_prints_a_line_of_a_worker(capsys: Any) -> None:
    logger = logging.getLogger("ravi")
    before = (logger.handlers, logger.level, logger.propagate)
    try:
        logging.config.dictConfig(Page("errors").run("shop/settings.py")["LOGGING"])
        logging.getLogger("ravi.runs").info("a line")
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
    assert " INFO ravi.runs: a line" in capsys.readouterr().err


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once", "transactional"])
@pytest.mark.parametrize(("error", "level"), [
    (ValueError("boom"), logging.ERROR), (PermissionDenied("not yours"), logging.INFO), (ToolRefused("no"), None),
])  # fmt: skip
def test_a_tool_that_raises_has_a_line(caplog: Any, effect: str, error: Exception, level: int | None) -> None:
    caplog.set_level(logging.INFO)

    def broken(part: str) -> str:
        """Break."""
        raise error

    async def story(ctx: Any, inbox: Any) -> str:
        await ctx.tool(name, part="a")
        return "done"

    name = f"broken_{effect}_{type(error).__name__}"
    broken.__name__ = name
    code(story, tools=[tool(effect=effect)(broken)])
    drive(make_run())
    drive(make_run()) if effect == "idempotent" else None

    lines = [record for record in caplog.records if record.name == "ravi.tools" and hasattr(record, "tool")]
    expected = [] if level is None else [(level, name, error)] * (2 if effect == "idempotent" else 1)
    assert [(line.levelno, line.tool, line.exc_info[1]) for line in lines] == expected


def test_an_attempt_that_is_repeated_is_a_warning_and_of_many_lines_the_tenth_is_the_last(caplog: Any) -> None:
    @tool
    async def away(number: int) -> str:
        """Try."""
        if number == 0:
            raise TransientError("the server is away", type="Away")
        raise OSError("broken")

    async def again(ctx: Any, inbox: Any) -> str:
        return (await ctx.tool("away", number=0)).text

    async def many(ctx: Any, inbox: Any) -> str:
        for _ in range(15):
            await ctx.tool("away", number=1)
        return "done"

    code(again, tools=[away])
    drive(make_run())
    code(many, tools=[away])
    drive(make_run())

    lines = [record for record in caplog.records if record.name == "ravi.tools" and hasattr(record, "tool")]
    assert [line.levelno for line in lines] == [logging.WARNING] + [logging.ERROR] * 10
    assert ["(the last line of this kind" in line.message for line in lines] == [False] * 10 + [True]
