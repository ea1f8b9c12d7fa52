"""The bill of a request whose worker is killed in the middle of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from project.process import wait_until
from tests.support.openai_server import Reply
from tests.support.patience import BOUND_S
from tests.support.site_process import LEASE_S, MARGIN_S, SWEEP_S, Site, Worker

WORDS = [f"word{number} " for number in range(200)]


@pytest.mark.parametrize("budget", [None, {"max_tokens": 100_000}])
def test_a_request_lost_with_its_worker_is_on_the_bill_once(site: Site, workers: list[Worker], budget: Any) -> None:
    about = site.model.conversation("lost", script=lambda body: Reply(text="".join(WORDS).strip()))
    site.model.token_delay = 0.02
    run_id = site.submit_to(workers[0], about, budget=budget)
    assert wait_until(lambda: streamed(site, run_id) >= 20, BOUND_S)
    workers[0].child.kill()
    site.model.token_delay = 0.0
    seen = streamed(site, run_id)
    run = site.completed(run_id, LEASE_S + SWEEP_S + MARGIN_S)
    site.replace(workers[0])

    kinds = [row["kind"] for row in site.journal(run_id)]
    ((lost, call),) = zip(rows(site, run_id, "llm.paid"), rows(site, run_id, "llm.call"), strict=True)
    assert kinds.index("llm.paid") < kinds.index("llm.call")
    assert lost["result"] == {"estimated": True, "reason": "lost"} and lost["name"] == "openai/test-model"
    assert lost["path"] == f"@paid.{call['path']}#1.0" and lost["epoch"] == 2
    per_word = 2  # tokens
    assert per_word * (seen - 1) <= lost["output_tokens"] <= per_word * (seen + 1)
    assert lost["input_tokens"] > 0
    assert run["output_tokens"] == lost["output_tokens"] + call["output_tokens"]
    if budget:
        (account,) = site.query("SELECT * FROM ravi_budgetaccount WHERE key = %s", f"tree:{run_id}")
        used = sum(row["input_tokens"] + row["output_tokens"] for row in (lost, call))
        assert (account["spent_tokens"], account["spent_turns"], account["reserved_turns"]) == (used, 2, 0)


def rows(site: Site, run_id: str, kind: str) -> list[dict[str, Any]]:
    return [row for row in site.journal(run_id) if row["kind"] == kind]


def streamed(site: Site, run_id: str) -> int:
    return "".join(frame["text"] for frame in site.events(run_id) if frame["type"] == "text.delta").count("word")
