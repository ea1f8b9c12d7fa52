"""Runs of agents that are rows: each is driven by the version that it was made with, whatever becomes of the row."""

from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from ravi_django import register, register_tool, signal, submit
from ravi_django.agents import ReActAgent
from ravi_django.kernel import AgentId, InvalidInputError, Message, ToolUseBlock
from ravi_django.models import Agent, AgentVersion, JournalEntry, Run, Status
from ravi_django.testing import ScriptedModel, journal_of, run_until_idle
from tests.support import world
from tests.support.runs import code, drive, every_death, idle, leased, make_run, message, on_postgresql, take_over
from tests.support.world import fork, retry

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = "react/helper"
OLD = "Serve {{ customer }}, whom {{ user.username|default:'nobody' }} sent on {{ today }}."
SPEC = {
    "model": "scripted",
    "system_instructions": OLD,
    "variables": {"customer": {"default": "you"}},
    "tool_names": ["step"],
}
NEW = {"model": "other", "system_instructions": "Be rude.", "tool_names": []}
CALLS = [
    ToolUseBlock(tool_name="step", arguments={"name": "1"}, call_id="c1"),
    ToolUseBlock(tool_name="step", arguments={"name": "2"}, call_id="c2"),
]


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch):
    world.silence(monkeypatch, "dispatch_send")


@pytest.fixture
def models(monkeypatch):
    """The clients of specs' models, by name, as all processes would build them."""
    found = {
        "scripted": ScriptedModel([*CALLS, "done"], name="scripted"),
        "other": ScriptedModel(["pah"], name="other"),
    }
    world.patch(monkeypatch, "build_model", lambda name, **options: found[name])
    return found


@pytest.fixture
def model(models):
    return models["scripted"]


@pytest.fixture
def helper(models, step):
    register_tool(step)
    return world.save_spec(ADDRESS, SPEC)


def told(call):
    """The instructions of a model call."""
    return call.messages[0].text


def test_a_row_runs_without_a_line_of_code(helper, model, ran):
    ann = get_user_model().objects.create_user("ann")
    run = submit(ADDRESS, "hi", user=ann, metadata={"variables": {"customer": "Ada"}})
    assert run_until_idle() >= 1
    run.refresh_from_db()
    assert (run.status, run.output, run.agent_version, ran) == (Status.COMPLETED, "done", 1, ["1", "2"])
    day = run.started_at.date().isoformat()
    assert [told(call) for call in model.calls] == [f"Serve Ada, whom ann sent on {day}."] * 3
    started = journal_of(run)[0]
    assert (started.path, started.result["version"]) == ("@started", 1)


def edit():
    """What an operator may do under a live run."""
    world.save_spec(ADDRESS, NEW, enabled=False)


def test_a_takeover_goes_on_with_the_old_version_and_repeats_nothing(helper, model, models, ran, clock):
    def story(drive):
        model.calls.clear(), ran.clear()
        world.save_spec(ADDRESS, SPEC)
        return drive(submit(ADDRESS, "hi", metadata={"variables": {"customer": "Ada"}}), meanwhile=edit)

    for run, death in every_death(clock, story):
        assert (run.status, run.output, run.agent_version) == (Status.COMPLETED, "done", 1)
        assert models["other"].calls == []
        texts = {told(call) for call in model.calls}
        assert len(texts) == 1
        assert texts.pop().startswith("Serve Ada, whom nobody sent on ")
        assert (len(model.calls), len(ran)) == (3 + death.lost("llm.call"), 2 + death.lost("tool.call"))
        kinds = [row.kind for row in journal_of(run)]
        assert (kinds.count("llm.call"), kinds.count("tool.call"), kinds.count("pinned")) == (3, 2, 1)
        assert "replay.drift" not in kinds


def spawning(target, boot, seen):
    async def parent(ctx, inbox):
        outcome = await ctx.ask(AgentId.parse(target), boot())
        seen.append(outcome)
        await ctx.sleep_until_signal("go")
        return outcome.result

    return parent


def boot_with(**variables):
    said = Message.model_validate(message("work", ADDRESS))
    return lambda: Message(target=said.target, payload=said.payload, metadata={"variables": variables})


@pytest.mark.parametrize("how", ["ask", "send"])
def test_a_run_that_a_message_boots_has_a_version_and_its_variables_of_it(helper, model, how):
    async def sender(ctx, inbox):
        await getattr(ctx, how)(AgentId.parse(ADDRESS), boot_with(customer="Bob")())

    code(sender)
    first = submit("test/code", "hi")
    run_until_idle()
    run = Run.objects.get(agent=ADDRESS)
    assert (run.status, run.agent_version) == (Status.COMPLETED, 1)
    if how == "ask":
        assert (run.parent, run.metadata) == (first, {"variables": {"customer": "Bob"}})
    else:
        assert run.session_id == first.session_id
    assert told(model.calls[0]).startswith("Serve Bob")


def test_a_child_without_a_required_variable_is_refused_and_every_replay_says_so(models, step):
    register_tool(step)
    world.save_spec(ADDRESS, {**SPEC, "variables": {"customer": {"required": True}}})
    run = drive(make_run(ADDRESS, agent_version=1))  # one that misses it after all
    assert (run.status, run.error["type"]) == (Status.FAILED, "InvalidInputError")
    assert "variables.customer is required" in run.error["message"]
    refusals = []

    async def parent(ctx, inbox):
        try:
            await ctx.spawn(AgentId.parse(ADDRESS), "work")
        except Exception as error:
            refusals.append(f"{type(error).__name__}: {error}")
        await ctx.sleep_until_signal("go")

    code(parent)
    run = drive(submit("test/code", "hi"))
    world.save_spec(ADDRESS, {**SPEC, "variables": {"customer": {"default": "you"}}})
    signal(run.id, "go")
    run = drive(run)
    assert run.status == Status.COMPLETED
    assert refusals[0] == refusals[1]
    assert refusals[0].startswith(f"PermanentError: {ADDRESS}: metadata.variables.customer is required")
    assert not Run.objects.filter(parent=run).exists()


def test_a_replayed_spawn_does_not_look_for_the_agent_again(helper, model):
    code(spawning(ADDRESS, boot_with(), seen := []))
    parent = submit("test/code", "hi")
    run_until_idle()
    Agent.objects.get(address=ADDRESS).delete()
    signal(parent.id, "go")
    idle(parent)
    assert parent.status == Status.COMPLETED
    assert [outcome.kind for outcome in seen] == ["replied", "replied"]


@pytest.mark.parametrize("how", ["spawn", "send"])
def test_a_row_that_is_switched_off_is_not_there_for_other_runs(helper, how):
    world.save_spec(ADDRESS, SPEC, enabled=False)

    async def parent(ctx, inbox):
        await getattr(ctx, how)(AgentId.parse(ADDRESS), "work")

    code(parent)
    run = drive(submit("test/code", "hi"))
    assert (run.status, run.error["type"]) == (Status.FAILED, "AgentNotFoundError")
    assert Run.objects.count() == 1


def test_a_message_to_a_row_that_has_a_run_need_not_bring_variables(helper, model):
    world.save_spec(ADDRESS, {**SPEC, "variables": {"customer": {"required": True}}})

    async def sender(ctx, inbox):
        await ctx.send(AgentId.parse(ADDRESS), "one more thing")

    code(sender)
    run = submit(ADDRESS, "hi", metadata={"variables": {"customer": "Ada"}})
    drive(submit("test/code", "hi", session=run.session))  # before the other has come to its end
    idle(run)
    assert (run.status, Run.objects.filter(agent=ADDRESS).count()) == (Status.COMPLETED, 1)
    assert "one more thing" in [said.text for said in model.calls[-1].messages]


def test_a_fork_keeps_the_version_of_its_source(helper, model):
    run = submit(ADDRESS, "hi")
    run_until_idle()
    edit()
    new = fork(run.id, 4)
    idle(new)
    assert (new.agent_version, new.status, new.output) == (1, Status.COMPLETED, "done")


@pytest.mark.parametrize(("version", "then", "gone"), [(1, 2, False), (1, 1, True), (None, None, False)])
def test_a_new_generation_takes_the_newest_version_of_a_row(helper, version, then, gone):
    world.save_spec(ADDRESS, NEW)
    run = make_run(ADDRESS, agent_version=version)
    if gone:
        Agent.objects.all().delete()
    world.continue_as_new(leased(run), [], state=None, read_upto=0)
    run.refresh_from_db()
    assert (run.generation, run.agent_version) == (1, then)


def forget_tools():
    world.registry_tools.clear()
    world.replace("registry_known", None)


@pytest.mark.parametrize("dies", [None, 4])
def test_a_worker_without_the_tool_gives_the_run_back_with_words(helper, model, step, ran, clock, dies):
    run = submit(ADDRESS, "hi")
    if dies:
        drive(run, dies=dies, written=True)
    calls = len(model.calls)
    forget_tools()
    run = take_over(clock, run)
    assert (run.status, run.lease_owner, run.attempts) == (Status.PENDING, "", 0)
    assert run.error["type"] == "InvalidInputError"
    assert "unknown tool 'step'" in run.error["message"]
    assert len(model.calls) == calls
    register_tool(step)
    run = take_over(clock, run)
    assert (run.status, run.output, run.error) == (Status.COMPLETED, "done", None)
    assert (len(model.calls), ran) == (3, ["1", "2"])


EVIL = "bedrock/agentcore/arn:aws:bedrock-agentcore:evil.example/x:1:runtime/abc"
CHOOSES_A_HOST = [
    *(
        EVIL,
        "bedrock/ARN:aws:bedrock:eu-west-1:1:model/x",
        "sagemaker/arn:aws:x",
        "vertex_ai/agent_engine/projects/evil/locations/us-central1/reasoningEngines/1",
        "baseten/abcd1234",
        "arn:aws:bedrock:eu-west-1:1:model/x",
    ),
    *(
        "langgraph/x",
        "langflow/x",
        "lm_studio/x",
        "xinference/x",
        "litellm_proxy/x",
        "custom_openai/x",
        "hosted_vllm/x",
    ),
    *("openai_like/x", "triton/x", "a2a/x", "predibase/x", "LANGGRAPH/x", "bedrock/evil.example/x"),
]
CHOOSES_NONE = [
    *("gpt-4o", "openai/gpt-4o", "anthropic/claude-sonnet-4-5", "bedrock/us-gov-west-1/anthropic.claude-v2:1"),
    *("bedrock/converse/eu.amazon.nova-pro-v1:0", "cloudflare/@cf/meta/llama-2-7b", "ft:gpt-4o:org::id"),
]


def test_a_row_names_no_model_that_chooses_its_host(helper, models, model, settings):
    models |= dict.fromkeys(CHOOSES_NONE, model)
    ours = "bedrock/agentcore/arn:aws:bedrock-agentcore:eu-west-1:1:runtime/ours"
    for listed, refused, allowed in (
        (None, CHOOSES_A_HOST, CHOOSES_NONE),
        (["scripted", "bedrock/*", ours, "langgraph/x"], [EVIL, "gpt-4o"], ["scripted", ours, "langgraph/x"]),
    ):
        settings.RAVI = {**settings.RAVI, "MODELS": listed}
        for name in refused:
            with pytest.raises(InvalidInputError, match="MODELS") as caught:
                world.save_spec(ADDRESS, {**SPEC, "fallbacks": ["scripted", name]})
            assert caught.value.field == "fallbacks.1" and repr(name) in str(caught.value)
        for name in ("openai/a%2fb", "bedrock/a;b"):
            with pytest.raises(InvalidInputError, match="a name has only letters"):
                world.save_spec(ADDRESS, {**SPEC, "model": name})
        models |= dict.fromkeys(allowed, model)
        for name in allowed:
            world.save_spec(ADDRESS, {**SPEC, "model": name, "fallbacks": allowed[:1]})

    settings.RAVI = {**settings.RAVI, "MODELS": ["openai/*", 7]}
    assert "RAVI['MODELS'] has 7, not a name" in str(run_checks(tags=["ravi"]))
    settings.RAVI = {**settings.RAVI, "MODELS": None}
    run = submit(ADDRESS, "hi")  # a row from before the rule
    AgentVersion.objects.update(spec={**SPEC, "model": EVIL})
    run = drive(run)
    assert (run.status, run.error["type"], model.calls) == (Status.PENDING, "InvalidInputError", [])
    assert EVIL in run.error["message"]


def test_a_run_whose_version_is_gone_is_blocked_until_it_is_back(helper, model, clock):
    run = submit(ADDRESS, "hi")
    drive(run, dies=2, written=True)
    world.save_spec(ADDRESS, NEW)
    version = AgentVersion.objects.get(number=1)
    AgentVersion.objects.filter(number=1).delete()
    run = take_over(clock, run)
    assert (run.status, run.error["type"]) == (Status.BLOCKED, "NotFoundError")
    assert f"version 1 of agent {ADDRESS}" in run.error["message"]
    version.save(force_insert=True)
    retry(run.id)
    run = drive(run)
    assert (run.status, run.output, len(model.calls)) == (Status.COMPLETED, "done", 3)


def test_code_registered_under_the_address_leaves_the_rows_runs_alone(helper, model):
    run = submit(ADDRESS, "hi")
    register(ReActAgent("helper", model=ScriptedModel(["code speaks"])))
    run = drive(run)
    assert (run.agent_version, run.output) == (1, "done")


def check():
    out = StringIO()
    try:
        call_command("ravi_replay_check", stdout=out)
    except SystemExit as exit:
        return exit.code, out.getvalue()
    return 0, out.getvalue()


def test_the_replay_check_replays_rows_by_their_version(helper, model, clock):
    run = submit(ADDRESS, "hi")
    drive(run, dies=4, written=True)
    edit()
    before = list(Run.objects.values()), JournalEntry.objects.count(), len(model.calls)
    assert check() == (0, "ravi_replay_check: runs=1 broken=0 drifted=0\n")
    assert (list(Run.objects.values()), JournalEntry.objects.count(), len(model.calls)) == before
    forget_tools()
    status, said = check()
    assert status == 1
    assert "unknown tool 'step'" in said


def queries_of(function, *args, **kwargs):
    with CaptureQueriesContext(connection) as captured:
        function(*args, **kwargs)
    words = [query["sql"].split()[0] for query in captured]
    return [word for word in words if word not in ("SAVEPOINT", "RELEASE", "BEGIN", "COMMIT")]


@on_postgresql
def test_a_submit_of_a_row_costs_what_that_of_code_does(helper):
    code(lambda ctx, inbox: None)
    assert queries_of(submit, ADDRESS, "hi") == queries_of(submit, "test/code", "hi") == ["SELECT", "WITH"]
