"""The versions of an agent: looked at, compared, made current again, and named by the runs that they drove."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model

from ravi_django.admin.agents.versions import changes
from ravi_django.models import Agent, AgentVersion
from ravi_django.pages import formats
from tests.acceptance.admin.agent_support import SPEC, place
from tests.support.inbox import page, words
from tests.support.world import save_spec, submit_once

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(transactional_db: None) -> Agent:
    """Three versions: the second has other instructions, the third a tool less and no name."""
    olga = get_user_model().objects.create_user("olga")
    save_spec("support/orders", SPEC, by=olga)
    second = {**SPEC, "system_instructions": "You help {{ company }}.\nBe {{ tone }}.\nBe brief."}
    save_spec("support/orders", second, by=olga)
    return save_spec("support/orders", {**second, "tool_names": [], "name": ""})


def restore(client: Any, agent: Agent, number: int, seen: int = 3) -> Any:
    return client.post(f"{place(agent)}versions/{number}/restore/", {"version": str(seen)}, follow=True)


def test_a_version_tells_what_it_changed_and_what_going_back_would(root, agent) -> None:
    html = page(root, f"{place(agent)}versions/2/")

    since, back = html.split("What restoring it would change")
    assert "saved" in since and "by olga" in words(since)
    assert "What changed since version 1" in since
    assert words(since).count("system instructions") == 1 and "tool names" not in words(since)
    assert re.search(r'ravi-removed"><span class="ravi-mark">-</span>You help {{ company }}. Be {{ tone }}.<', since)
    assert re.search(r'ravi-added"><span class="ravi-mark">\+</span>Be brief.<', since)
    assert "tool names" in words(back) and "Restore this version" in html


def test_the_first_and_the_current_version(root, operator, agent) -> None:
    first, last = page(root, f"{place(agent)}versions/1/"), page(root, f"{place(agent)}versions/3/")

    assert "The first version" in first and "ravi-removed" not in first.split("What restoring")[0]
    assert "Restore this version" not in page(operator("view_agent"), f"{place(agent)}versions/1/")
    assert "Restore this version" not in last and "What restoring" not in last
    assert root.get(f"{place(save_spec('support/other', SPEC))}versions/3/").status_code == 404, "another agent's"
    assert [root.get(f"{place(agent)}versions/{number}/").status_code for number in ("4", "0", "9" * 30, "x")] == [
        *[404, 404, 404],
        302,
    ]


def test_an_old_version_is_made_current_as_a_new_one(root, agent) -> None:
    html = restore(root, agent, 1).content.decode()

    agent.refresh_from_db()
    assert (agent.version, agent.spec, agent.name) == (4, agent.versions.get(number=1).spec, "Orders")
    assert agent.versions.get(number=4).created_by.is_superuser
    assert agent.versions.get(number=3).spec["model"] == "rehearsal", "nothing was lost"
    assert "Restored version 1 as version 4." in html
    assert LogEntry.objects.get().change_message == "Restored version 1 as version 4."
    restore(root, agent, 3, seen=4)
    agent.refresh_from_db()
    assert (agent.version, agent.name) == (5, ""), "version 3 has no name"


def test_a_version_that_no_longer_fits_says_why(root, agent) -> None:
    AgentVersion.objects.filter(agent=agent, number=1).update(spec={"model": "rehearsal", "tool_names": ["gone"]})

    html = restore(root, agent, 1).content.decode()

    agent.refresh_from_db()
    assert agent.version == 3
    assert "Version 1 cannot be restored: tool_names.0" in html


def test_many_versions_are_paged(root, agent) -> None:
    for n in range(4, 46):
        save_spec("support/orders", {**SPEC, "max_iterations": n})
    agent.refresh_from_db()

    first, third = page(root, f"{place(agent)}change/"), page(root, f"{place(agent)}change/?versions=3")

    assert agent.version == 45
    assert first.count("/versions/") == 20 and "versions 1 to 20 of 45" in words(first)
    assert third.count("/versions/") == 5 and "first version" in words(third)


def test_a_runs_page_names_the_version_that_drives_it(root, agent) -> None:
    run = submit_once("support/orders", "hi", send=lambda run_id: None, metadata={"variables": {"company": "ACME"}})[0]
    save_spec("support/orders", SPEC)

    html = page(root, f"/ravi/ui/runs/{run.pk}/")

    assert f'href="{place(agent)}versions/3/">version 3</a>' in html
    Agent.objects.all().delete()
    assert "version 3 (agent deleted)" in page(root, f"/ravi/ui/runs/{run.pk}/")


def test_differences_are_bounded_and_in_the_order_of_the_form() -> None:
    old = {"model": "a", "welcome": "hi", "system_instructions": "\n".join(map(str, range(5000))), "odd": None}
    new = {"model": "b", "system_instructions": "", "odd": [1]}

    found = changes(old, new)

    assert [change["name"] for change in found] == ["model", "system instructions", "welcome", "odd"]
    assert len(found[1]["lines"]) == formats.DIFFERENCE_LINES + 1 and "more lines" in found[1]["lines"][-1][1]
    assert found[2]["lines"] == [("-", "hi")]
    assert changes(None, "nonsense") == []
