"""Tools that live in the client: which models get them, and how a call ends. The surfaces have their own tests."""

from datetime import timedelta

import pytest

from ravi_django import register
from ravi_django.agents import AgentTool, ReActAgent
from ravi_django.kernel import ForbiddenError, InvalidInputError, NotFoundError, ToolUseBlock
from ravi_django.models import Delegation, HumanRequest, Run, Status
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world
from tests.support.runs import code, drive, every_death, make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
FIELDS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "fill", "description": "Fill the form.", "parameters": FIELDS}]


def call(name: str = "page_fill", **arguments: str) -> ToolUseBlock:
    return ToolUseBlock(tool_name=name, arguments=arguments or {"city": "Bonn"}, call_id="c1")


def filler(*script, key="filler", **options):
    model = ScriptedModel([*script])
    register(ReActAgent(key, model=model, **{"client_tools": True, **options}), replace=True)
    return model


def begun(ann, agent="react/filler") -> Run:
    return drive(make_run(agent, owner=ann, client_tools=TOOLS))


def offered(model: ScriptedModel) -> list[str]:
    return [tool.name for tool in model.calls[0].options.tools]


def asked(run: Run) -> HumanRequest:
    return HumanRequest.objects.filter(run=run).latest("id")


def last_text(model: ScriptedModel) -> str:
    """What the model got as the result of its call."""
    return str(model.calls[-1].messages[-1].content)


@pytest.mark.sqlite
def test_the_call_ends_after_ten_minutes_and_the_model_gets_no_result(ann, clock):
    model = filler(call(), "done")
    run = begun(ann)
    assert (run.waits_for["kind"], run.waits_for["id"]) == ("client_tool", str(asked(run).id))

    clock.advance(timedelta(minutes=9, seconds=59))
    run_until_idle()
    assert asked(run).status == "pending"
    clock.advance(timedelta(seconds=2))

    assert drive(run).output == "done"
    assert "did not answer" in last_text(model)
    assert asked(run).status == "expired"


def test_a_worker_that_dies_calls_the_page_once_and_gives_the_same_result(ann, clock):
    model = ScriptedModel([])

    def story(drive):
        nonlocal model
        model = filler(call(), "done", "done")
        run = drive(make_run("react/filler", owner=ann, client_tools=TOOLS))
        for request in HumanRequest.objects.filter(status="pending"):
            world.answer(request.id, text="filled", by=ann)
        return run if run.is_terminal else drive(run)

    for run, _ in every_death(clock, story):
        assert (run.status, HumanRequest.objects.filter(run=run).count()) == (Status.COMPLETED, 1)
        assert "filled" in last_text(model)


def test_only_the_owner_answers_and_once(ann, django_user_model):
    filler(call(), "done")
    run = begun(ann)
    request = asked(run)
    users = django_user_model.objects
    stand_in = users.create_user("ben", is_staff=True)
    Delegation.objects.create(user=ann, delegate=stand_in)
    for other, error in (
        (stand_in, NotFoundError),
        (users.create_user("bob"), NotFoundError),
        (users.create_superuser("root"), ForbiddenError),
    ):
        with pytest.raises(error):
            world.answer(request.id, text="forged", by=other)
    with pytest.raises(InvalidInputError):
        world.answer(request.id, "approve", by=ann)
    assert not world.answerable(ann).exists() and not world.answerable(users.get(username="root")).exists()

    world.answer(request.id, text="", by=ann)

    assert drive(run).output == "done"


def test_children_get_none(ann):
    child = filler("42", key="kid")
    lead = filler(ToolUseBlock(tool_name="handoff_kid", arguments={"task": "?"}, call_id="c"), "done")
    register(ReActAgent("filler", model=lead, client_tools=True, tools=[AgentTool("react/kid")]), replace=True)
    run = make_run("react/filler", owner=ann, client_tools=TOOLS)
    run_until_idle()
    run.refresh_from_db()
    assert (run.output, offered(lead), offered(child)) == ("done", ["handoff_kid", "page_fill"], [])


@pytest.mark.parametrize("takes", [True, False])
def test_an_agent_that_takes_over_gets_them_if_it_has_client_tools(ann, takes):
    from tests.unit.runtime.test_handoff_react import leave

    second = filler("done", key="second", client_tools=takes)
    hand_over = ToolUseBlock(tool_name="leave", arguments={"target": "react/second"}, call_id="c")
    filler(hand_over, tools=[leave])

    run = begun(ann)
    run = run if run.is_terminal else drive(run)

    assert (run.output, offered(second)) == ("done", ["page_fill"] if takes else [])


def test_the_owner_approves_a_call_first_if_the_agent_says_high(ann, settings):
    settings.RAVI = {**settings.RAVI, "FOUR_EYES": True}
    model = filler(call(), "done", client_tools="high")
    run = begun(ann)
    assert (asked(run).kind, asked(run).to) == ("approval", "owner")

    world.answer(asked(run).id, "approve", by=ann)
    run = drive(run)
    request = HumanRequest.objects.get(run=run, kind="client_tool")
    world.answer(request.id, text="filled", by=ann)

    assert (drive(run).output, "filled" in last_text(model)) == ("done", True)


def test_arguments_that_do_not_fit_the_schema_do_not_reach_the_page(ann):
    model = filler(call(town="Bonn"), "done")

    assert (begun(ann).output, HumanRequest.objects.exists()) == ("done", False)
    assert "city" in last_text(model)


def test_a_fork_has_the_tools_of_its_run(ann):
    filler(call(), "done", "done")
    run = begun(ann)
    world.answer(asked(run).id, text="filled", by=ann)
    run = drive(run)

    assert drive(world.fork(run.id, run.next_seq - 1)).output == "done"


def test_a_state_is_the_one_that_the_run_has_set_last_whatever_dies(clock):
    async def story(ctx, inbox):
        for dish in ("soup", "cake"):
            await ctx.set_state({"dish": dish})

    code(story)
    for run, _ in every_death(clock, lambda drive: drive(make_run())):
        run.session.refresh_from_db()
        assert run.session.shared_state == {"dish": "cake"}
        states = [frame["state"]["dish"] for frame in world.events_page(run.id)[0] if frame["type"] == "state"]
        assert states == ["soup", "cake"]
