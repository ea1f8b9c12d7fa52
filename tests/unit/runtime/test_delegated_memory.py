"""What a delegated agent remembers: the tasks and answers of its earlier child runs in one conversation."""

import pytest

from ravi_django import register, submit
from ravi_django.agents import AgentTool, ContextConfig, OrchestratorAgent, ReActAgent, SubAgentConfig
from ravi_django.agents.context import DjangoHistoryProvider
from ravi_django.kernel import InvalidInputError, ToolUseBlock
from ravi_django.models import Session, Turn
from ravi_django.testing import ScriptedModel, run_until_idle

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]

REMEMBERED = ["Remember 42.", "noted", "Which number?"]


def tell(task, call_id="c1", key="sub"):
    return ToolUseBlock(tool_name=f"handoff_{key}", arguments={"task": task}, call_id=call_id)


def memory():
    return ContextConfig(DjangoHistoryProvider())


def ask(boss, *says, session=None):
    boss.model.script = [*says, "ok"]
    run = submit(boss, "go on", session=session)
    run_until_idle()
    return run


def texts(agent, call=-1):
    return [message.text for message in agent.model.calls[call].messages]


def as_sub_agent(sub, memory):
    return OrchestratorAgent("boss", model=ScriptedModel("ok"), sub_agents=[SubAgentConfig(sub, memory=memory)])


def as_agent_tool(sub, memory):
    return ReActAgent("boss", model=ScriptedModel("ok"), tools=[AgentTool(sub, memory=memory)])


def as_plain_tool(sub, memory):
    return ReActAgent("boss", model=ScriptedModel("ok"), tools=[sub])


@pytest.mark.parametrize("delegating", [as_sub_agent, as_agent_tool, as_plain_tool])
def test_a_sub_agent_remembers_within_the_conversation_and_nowhere_else(delegating):
    sub = ReActAgent("sub", model=ScriptedModel("noted"), context=memory())
    boss = register(delegating(sub, "conversation"))
    first = ask(boss, tell("Remember 42."))
    ask(boss, tell("Which number?"), session=first.session)
    assert texts(sub) == REMEMBERED
    ask(boss, tell("Which number?"))
    assert texts(sub) == ["Which number?"]
