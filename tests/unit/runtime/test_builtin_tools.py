"""Every built-in, in a run: what it gave once is given again after a crash, and it is not run again."""

import pytest
from django.contrib.auth.models import Permission, User

from ravi_django import tools
from ravi_django.models import JournalEntry, Status
from tests.support.runs import code, drive, make_run, take_over
from tests.support.tool_calls import calling

pytestmark = pytest.mark.django_db(transaction=True)


async def _resolve(host, port):
    return ["10.0.0.1"]


BUILT_IN = {
    "calculator": (tools.CalculatorTool, {"expression": "6 * 7"}, "ok: 42"),
    "current_time": (tools.CurrentTimeTool, {}, "ok: 20"),
    "http_fetch": (
        lambda: tools.HttpFetchTool(["site.test"], resolver=_resolve),
        {"url": "http://site.test/"},
        "error: the host 'site.test' is in a network",
    ),
    "read_user": (lambda: tools.QuerysetTool(User, fields=["username"]), {}, 'ok: {"rows":[{"username":"ann"}]'),
    "read_result": (tools.ReadResultTool, {"id": "x"}, "error: there is no result 'x' here"),
}


@pytest.fixture
def ann():
    user = User.objects.create_user("ann")
    user.user_permissions.add(Permission.objects.get(codename="view_user"))
    return user


@pytest.mark.parametrize(
    ("name", "dies", "written"),
    [*[(name, "end", False) for name in BUILT_IN], ("calculator", 1, False), ("read_user", 1, True)],
)
def test_a_recorded_call_is_not_made_again(name, dies, written, clock, ran, ann):
    make, arguments, answer = BUILT_IN[name]
    made = make()
    execute = made.execute

    async def counted(**given):
        ran.append(name)
        result = execute(**given)
        return await result if hasattr(result, "__await__") else result

    made.execute = (
        counted
        if name in ("calculator", "current_time", "http_fetch")
        else (lambda **given: ran.append(name) or execute(**given))
    )
    code(calling(name, **arguments), tools=[made])
    run = drive(make_run(owner=ann), dies=dies, written=written)
    recorded = [row.result for row in JournalEntry.objects.filter(run=run, kind="tool.call", phase="result")]
    run = take_over(clock, run)
    assert run.status == Status.COMPLETED
    assert run.output.startswith(answer)
    assert ran == [name] * (1 if recorded else 2)
    after = [row.result for row in JournalEntry.objects.filter(run=run, kind="tool.call", phase="result")]
    assert after[: len(recorded)] == recorded


def test_all_of_them_are_named_in_one_place():
    assert all(callable(getattr(tools, name)) for name in tools.__all__)
    with pytest.raises(AttributeError, match="NoSuchTool"):
        tools.NoSuchTool  # noqa: B018
