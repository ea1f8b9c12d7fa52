"""Journals that earlier releases wrote are replayed by this one, to their end.

`make freeze NAME=<release>` freezes this release's.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest

from ravi_django import register, signal
from ravi_django.models import Blob, HumanRequest, JournalEntry, Run, Status
from tests.corpus import freeze
from tests.corpus.agents import OUTPUTS, agents
from tests.support import world
from tests.support.runs import drive, idle, leased, make_run
from tests.support.world import ENTRIES_SCHEMA, DatabaseThreads, Entry

pytestmark = pytest.mark.django_db(transaction=True)

FROZEN = sorted(freeze.JOURNALS.glob("*/*.json"))


@pytest.fixture(autouse=True)
def _agents():
    for agent in agents().values():
        register(agent)


def written(scenario):
    """A run of the scenario up to where it waits, or as far as the next effect after its first ones."""
    run = make_run(f"test/corpus_{scenario}")
    return drive(run, dies=3) if scenario == "react" else idle(run)


def on_to_the_end(scenario, run):
    if scenario == "react":
        Run.objects.filter(id=run.id).update(status=Status.PENDING, lease_owner="", lease_expires_at=None)
    elif scenario == "uncertain":
        HumanRequest.objects.filter(run=run).update(not_before=None)
        world.human_resolve(HumanRequest.objects.get(run=run).id, "happened", result=OUTPUTS["uncertain"])
    else:
        signal(run.id, "go", {"x": 1})
    idle(run)


if "FREEZE" in os.environ:

    @pytest.mark.parametrize("scenario", OUTPUTS)
    def test_freeze(scenario):
        freeze.save(os.environ["FREEZE"], scenario, written(scenario))


def test_there_is_a_journal_of_every_scenario():
    assert {path.stem for path in FROZEN} >= set(OUTPUTS)


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_frozen_journal_is_replayed_and_goes_on_to_its_end(path: Path):
    scenario = path.stem
    run = freeze.load(json.loads(path.read_text()))
    before = JournalEntry.objects.filter(kind__in=["llm.call", "tool.call"], phase="result").count()

    verdict = rehearsed(run)
    assert (verdict.error, verdict.drift) == (None, [])
    on_to_the_end(scenario, run)

    assert run.status == Status.COMPLETED, run.error
    output = run.output if isinstance(OUTPUTS[scenario], str) else json.loads(run.output)
    if scenario == "waits":
        assert 0 <= output.pop("random") < 1
    assert output == OUTPUTS[scenario]
    assert before > 0 or scenario in ("uncertain", "asks")
    seqs = JournalEntry.objects.filter(run=run).order_by("seq").values_list("seq", flat=True)
    assert list(seqs) == list(range(1, run.next_seq))


def rehearsed(run):
    async def scenario():
        database = DatabaseThreads(1, "ravi-replay")
        try:
            row = await database.call(lambda: next(one for one in world.live_runs() if one.id == run.id))
            return await world.rehearse(row, database)
        finally:
            await asyncio.to_thread(database.close)

    return asyncio.run(scenario())


def test_the_corpus_holds_values_of_every_kind():
    for path in FROZEN:
        freeze.load(json.loads(path.read_text()))
    kinds = set(JournalEntry.objects.values_list("kind", flat=True))
    assert kinds >= {"llm.call", "tool.call", "ask", "ask.replied", "child.spawned", "log", "now", "history.read"}
    assert kinds >= {"request.opened", "run.continued", "run.suspended", "timer", "signal"} - {"timer"}
    assert Blob.objects.filter(encoding="json+zlib").exists()


def test_a_journal_of_a_later_form_is_not_misread():
    lease = leased(make_run("test/corpus_waits"))
    world.append(lease, [Entry("log", "1", "began")])
    world.requeue(lease)
    JournalEntry.objects.update(schema=ENTRIES_SCHEMA + 1)
    run = drive(lease.run)
    assert (run.status, run.error["type"]) == (Status.BLOCKED, "DeterminismError")
    assert "of a later release" in run.error["message"]
