"""What agents' code is given: a person's answer, of one class wherever it arrives, and the answer of another agent."""

import copy
import json
import pickle
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User

import ravi_django
from ravi_django import HumanInput, PauseForInputResult, ReActAgent, aanswer, asignal, register, tool
from ravi_django.agents.flow import BaseAgentProxy, TurnEnd, WaitForInput
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support.runs import CodeAgent, asked, code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)

ANSWERED = {"action": "answer", "text": "red", "by": ""}


def test_a_persons_answer_is_of_one_class_wherever_it_arrives() -> None:
    seen: list[HumanInput] = []

    @tool
    def paint(answer: HumanInput | None = None) -> Any:
        """Paint it."""
        if answer is None:
            return PauseForInputResult("Which colour?")
        seen.append(answer)
        return answer

    class Asking(BaseAgentProxy):
        async def next_turn(self, prompt: Any) -> Any:
            answer = yield WaitForInput("Which colour?")
            seen.append(answer)
            yield TurnEnd(answer)

    async def story(ctx: Any, inbox: Any) -> Any:
        answer = await ctx.ask_human("Which colour?")
        seen.append(answer)
        kept = await ctx.pin("kept", lambda: answer)
        return answer if kept == answer else "another value was kept"

    async def painting(ctx: Any, inbox: Any) -> Any:
        return json.loads((await ctx.tool("paint")).text)

    register(Asking("asking", id="test/asking"))
    register(CodeAgent(painting, key="painting", tools=[paint]))
    code(story)
    for agent in ("test/code", "test/asking", "test/painting"):
        run = drive(make_run(agent))
        ravi_django.answer(asked(run).id, text="red")
        assert json.loads(drive(run).output) == ANSWERED, agent

    assert {type(answer) for answer in seen} == {HumanInput}
    assert all(answer == ANSWERED and answer["text"] == answer.text == "red" and answer.answered for answer in seen)


def test_a_decision_is_of_the_same_class() -> None:
    User.objects.create(username="ann", is_staff=True)

    async def story(ctx: Any, inbox: Any) -> Any:
        decision = await ctx.approve("pay", {"amount": 5}, to="staff")
        assert isinstance(decision, HumanInput)
        return [decision, decision.decision, decision.allows, decision.arguments]

    code(story)
    for action, more, decision, allows in [
        ("approve", {}, "approved", True),
        ("edit", {"arguments": {"amount": 3}}, "modified", True),
        ("deny", {"reason": "too much"}, "denied", False),
        ("skip", {}, "skipped", False),
    ]:
        run = drive(make_run())
        ravi_django.answer(asked(run).id, action, **more)
        said = {"action": action, "text": "", "by": "", **more}
        assert json.loads(drive(run).output) == [said, decision, allows, more.get("arguments")]


def test_an_answer_is_frozen_and_a_dict() -> None:
    answer = HumanInput("answer", values={"size": "4"}, by="ann")

    assert dict(answer) == {"action": "answer", "text": "", "by": "ann", "values": {"size": "4"}}
    assert answer.values["size"] == "4" and list(answer.values()) == ["answer", "", "ann", {"size": "4"}]
    assert (answer.reason, answer.arguments, "reason" in answer) == ("", None, False)
    for same in (copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
        assert (same, type(same)) == (answer, HumanInput)
    for change in (lambda: answer.update(text="no"), lambda: setattr(answer, "text", "no"), answer.clear):
        with pytest.raises((TypeError, AttributeError)):
            change()
    with pytest.raises(AttributeError, match="txt"):
        _ = answer.txt
    with pytest.raises(TypeError, match="arguments="):
        HumanInput("modified", {"amount": 2})


def test_an_async_view_answers_and_signals() -> None:
    async def story(ctx: Any, inbox: Any) -> str:
        return f"{(await ctx.ask_human('Which colour?')).text} {await ctx.sleep_until_signal('go')}"

    code(story)
    run = drive(make_run())

    assert async_to_sync(aanswer)(asked(run).id, text="red") == run.id
    assert [async_to_sync(asignal)(run, "go", 7, key="k") for _ in range(2)] == [True, False]
    assert drive(run).output == "red 7"


def test_another_agents_answer_is_read_alike_whatever_its_class() -> None:
    async def story(ctx: Any, inbox: Any) -> list[Any]:
        asks = [await ctx.ask(agent, "And?") for agent in ("react/plain", "react/typed", "test/odd", "test/fails")]
        return [[ask.text, ask.output] for ask in asks]

    async def odd(ctx: Any, inbox: Any) -> str:
        return inbox[0].text

    register(ReActAgent("plain", model=ScriptedModel(["Yes."])))
    register(ReActAgent("typed", model=ScriptedModel(['{"a": 1}']), result_model=dict[str, int]))
    register(CodeAgent(odd, key="odd"))
    register(CodeAgent(lambda ctx, inbox: 1 / 0, key="fails"))
    code(story)

    run = make_run()
    run_until_idle()
    run.refresh_from_db()

    assert json.loads(run.output) == [["Yes.", "Yes."], ['{"a":1}', {"a": 1}], ["And?", "And?"], ["", None]]
