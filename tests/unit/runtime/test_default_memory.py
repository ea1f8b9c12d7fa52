"""Without `context=` a registered agent remembers its conversation."""

from typing import Any

import pytest

from ravi_django import ContextConfig, OrchestratorAgent, ReActAgent, SubAgentConfig, create_assistant_agent, register
from ravi_django.kernel import InvalidInputError
from ravi_django.models import Turn
from ravi_django.testing import ScriptedModel
from tests.support.runs import drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def prompts(agent: ReActAgent) -> list[list[str]]:
    """What the model was sent for two messages of one conversation."""
    register(agent)
    first = drive(make_run(str(agent.id), text="one"))
    drive(make_run(str(agent.id), text="two", session=first.session))
    return [[message.text for message in call.messages] for call in agent.model.calls]


@pytest.mark.parametrize(("options", "remembers", "turns"), [
    ({}, True, 4), ({"retention": "permanent"}, True, 4), ({"retention": "run"}, False, 0),
    ({"retention": "none"}, False, 0), ({"context": ContextConfig()}, False, 0),
])  # fmt: skip
def test_an_agent_remembers_unless_it_is_told_not_to(options: dict[str, Any], remembers: bool, turns: int) -> None:
    sent = prompts(ReActAgent("helper", model=ScriptedModel(["yes"]), **options))
    assert sent == [["one"], ["one", "yes", "two"] if remembers else ["two"]]
    assert Turn.objects.count() == turns


def test_teams_their_members_and_assistants_remember() -> None:
    member = create_assistant_agent(ScriptedModel(["yes"]), key="member")
    team = OrchestratorAgent("lead", model=ScriptedModel(["yes"]), sub_agents=[SubAgentConfig(member)])
    assert prompts(team)[1] == prompts(member)[1] == ["one", "yes", "two"]
    with pytest.raises(InvalidInputError, match="ContextConfig"):
        ReActAgent("helper", model=team.model, context=ContextConfig(), retention="none")
