"""An agent that pays, people who approve it, and what became of it."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from ravi_django import register, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import TextBlock, ToolResultBlock, ToolUseBlock
from ravi_django.models import HumanRequest
from ravi_django.testing import ScriptedModel, journal_of
from tests.support.runs import make_run

PAYER = "react/payer"


def user(name, *groups, **fields):
    made = get_user_model().objects.create_user(name, **fields)
    for group in groups:
        made.groups.add(Group.objects.get_or_create(name=group)[0])
    return made


def call(amount, call_id="c1", name="pay", **more):
    return ToolUseBlock(tool_name=name, arguments={"amount": amount, **more}, call_id=call_id)


def paying(done, **options):
    """The tool `pay`, which tells `done` of what it has paid."""

    @tool(**{"risk": "high", "effect": "idempotent", **options})
    def pay(amount: int, to: str = "ACME") -> str:
        """Pay somebody."""
        done.append(amount)
        return f"paid {amount} to {to}"

    return pay


def payer(tools, *script, **options):
    """Register the agent, and make a run of it. `script` is what its model says; it ends with "done"."""
    options.setdefault("approvers", "staff")
    model = ScriptedModel([*(script or (call(5),)), "done"])
    agent = ReActAgent("payer", model=model, tools=tools if isinstance(tools, list) else [tools], **options)
    register(agent)
    return agent


def run_of(agent=PAYER, **fields):
    return make_run(str(agent), **fields)


def open_requests(run):
    return list(HumanRequest.objects.filter(run=run, status="pending").order_by("id"))


def results(agent):
    """What the model was told of its calls, by call id, in its last turn."""
    return {
        block.call_id: "\n".join(part.text for part in block.content if isinstance(part, TextBlock))
        for message in agent.model.calls[-1].messages
        for block in message.content
        if isinstance(block, ToolResultBlock)
    }


def rows(run, kind="approval"):
    return [entry for entry in journal_of(run) if entry.kind == kind]


def decisions(run):
    return [entry.result for entry in rows(run) if entry.phase == "result"]
