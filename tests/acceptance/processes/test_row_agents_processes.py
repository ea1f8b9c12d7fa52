"""An agent that is a row: made by one process, driven by workers that were started before it was."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.support.model_server import Conversation, said
from tests.support.openai_server import Body
from tests.support.site_process import LEASE_S, MARGIN_S, SWEEP_S, Site, Worker

SPEC: dict[str, Any] = {
    "model": "openai/test-model",
    "system_instructions": "You serve {{ customer }}.",
    "variables": {"customer": {"required": True}},
    "tool_names": ["calculator"],
}
EDITED = {"model": "openai/another", "system_instructions": "You serve nobody."}


def save(site: Site, address: str, spec: dict[str, Any], **options: Any) -> int:
    return int(site.client.ask("save_spec", address=address, spec=spec, **options))


def submit(site: Site, address: str, about: Conversation, hint: str | None = None) -> str:
    metadata = {"variables": {"customer": "Ada"}}
    asked = site.client.ask("submit", agent=address, text=about.text, hint=hint, metadata=metadata)
    return str(asked["id"])


def told(body: Body) -> tuple[str, str, list[str]]:
    """What a model call was made with: the model, the instructions, the tools."""
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    return body["model"], said(body["messages"][0]), tools


def test_an_agent_made_on_the_web_is_driven_by_a_worker_at_once(site: Site, worker: Worker) -> None:
    address = f"react/row-{uuid4().hex[:8]}"
    about = site.model.conversation("a row", steps=2)
    with site.without_sweeps():
        assert save(site, address, SPEC) == 1

        run_id = submit(site, address, about)
        run = site.completed(run_id)

    assert (run["agent_version"], run["lease_epoch"]) == (1, 1)
    assert {(model, words, *tools) for model, words, tools in map(told, about.requests)} == {
        ("test-model", "You serve Ada.", "calculator")
    }
    assert len(about.requests) == 3


def test_a_killed_workers_run_goes_on_with_its_version_though_the_row_was_edited(
    site: Site, workers: list[Worker]
) -> None:
    doomed, _ = workers[:2]
    address = f"react/row-{uuid4().hex[:8]}"
    about = site.model.conversation("an edited row", steps=3, hold={3})
    save(site, address, SPEC)
    run_id = _driven_by(site, doomed, address, about)
    about.wait_held(3)

    assert save(site, address, EDITED, enabled=False) == 2
    doomed.child.kill()
    about.release()
    run = site.completed(run_id, LEASE_S + SWEEP_S + MARGIN_S)

    site.replace(doomed)
    assert (run["agent_version"], run["lease_epoch"]) == (1, 2)
    assert about.counts() == {1: 1, 2: 1, 3: 2, 4: 1}  # the third was in flight: it is paid again
    assert {(model, words, *tools) for model, words, tools in map(told, about.requests)} == {
        ("test-model", "You serve Ada.", "calculator")
    }
    assert [row["result"]["version"] for row in site.journal(run_id) if row["kind"] == "run.started"] == [1]
    assert "replay.drift" not in site.kinds(run_id)


def _driven_by(site: Site, worker: Worker, address: str, about: Conversation) -> str:
    """As `Site.submit_to`, for an agent that is a row."""
    for _ in range(5):
        run_id = submit(site, address, about, hint=worker.name)
        site._wait_leased(run_id)
        if worker.drives(site.owner(run_id)):
            return run_id
        about.release()
        site.completed(run_id)
        site.model.renew(about)
    raise AssertionError(f"{worker.name} took none of the runs that were meant for it")
