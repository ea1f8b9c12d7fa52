"""An agent that is stored in the database asks at least what its tools' code asks: its editor takes nothing away."""

from __future__ import annotations

from typing import Any

import pytest

from ravi_django import register_tool, submit, tool
from ravi_django.kernel import ToolUseBlock
from ravi_django.models import HumanRequest
from ravi_django.testing import ScriptedModel, run_until_idle
from tests.support import world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def asked(monkeypatch: Any, finance: list[Any]) -> Any:
    """`asked(spec, **options)`: whom the row's call of the tool `wire` is put to; else what it came to."""
    world.silence(monkeypatch, "dispatch_send")
    for user in finance:
        user.is_staff = True
        user.save()

    def ask(spec: dict[str, Any], **options: Any) -> str:
        @tool(**{"risk": "high", "effect": "at_most_once", **options})
        def wire(amount: int) -> str:
            """Send money."""
            return "sent"

        register_tool(wire)
        call = ToolUseBlock(tool_name="wire", arguments={"amount": 7}, call_id="c1")
        heard: list[str] = []
        model = ScriptedModel([call, lambda messages, options: heard.append(messages[-1].content[0].text) or "done"])
        world.patch(monkeypatch, "build_model", lambda name, **options: model)
        world.save_spec("react/row", {"model": "scripted", "tool_names": ["wire"], **spec})
        run = submit("react/row", "hi", user=finance[0])
        run_until_idle()
        found = HumanRequest.objects.filter(run=run, status="pending").first()
        if found is None:
            return heard[0]
        whom = " then ".join(step["to"] for step in found.steps)
        return f"{whom}{', four eyes' if found.four_eyes else ''}"

    return ask


STAFF, OWNER, FINANCE = "staff, four eyes", "owner, four eyes", "group:finance, four eyes"


@pytest.mark.parametrize(
    ("spec", "code", "expected"),
    [
        ({"approval_required_risk": "critical", "approvers": "staff"}, {}, STAFF),
        ({"approval_required_risk": "safe", "approvers": "staff"}, {"risk": "safe"}, STAFF),
        ({"approvers": "staff"}, {"risk": "safe"}, "sent"),
        ({"approvers": {"wire": "staff"}}, {"approvers": "group:finance"}, FINANCE),
        ({"approvers": {"high": "staff"}}, {"approvers": "group:finance"}, FINANCE),
        ({"approvers": {"wire": "owner"}}, {"risk": "critical", "approval": "always", "approvers": "staff"}, STAFF),
        ({"approvers": "owner"}, {"approvers": "owner"}, OWNER),
        ({"approvers": [["owner", 60], "staff"]}, {}, STAFF),
        ({"approvers": [["staff", 60], "owner"]}, {}, STAFF),
        ({"approvers": {"steps": [{"to": "staff"}], "four_eyes": False}}, {}, STAFF),
        ({"approvers": "owner", "approval_required_risk": "safe"}, {"risk": "safe"}, OWNER),
    ],
)
def test_a_row_takes_nothing_from_its_tools_approvals(asked: Any, spec: Any, code: Any, expected: str) -> None:
    assert asked(spec, **code) == expected


def test_the_owner_confirms_no_risky_call_for_a_row(asked: Any, settings: Any) -> None:
    assert "nobody is configured to give it" in asked({"approvers": "owner"})

    settings.RAVI = {**settings.RAVI, "ADDRESSEES": {"approval": "group:finance"}}

    assert asked({"approvers": {"wire": "owner"}}) == FINANCE
