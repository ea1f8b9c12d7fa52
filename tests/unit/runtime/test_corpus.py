"""Journals and databases that earlier releases wrote are read by this one, and their live runs come to their ends.

`make freeze VERSION=<release>` freezes this release's.
"""

import asyncio
import json
import os
import re
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from ravi_django import register, signal
from ravi_django.models import Blob, HumanRequest, JournalEntry, Run, Status
from tests.corpus import freeze
from tests.corpus.agents import OUTPUTS, SEALED, SECRET, agents
from tests.support import world
from tests.support.runs import drive, idle, leased, make_run
from tests.support.world import ENTRIES_SCHEMA, DatabaseThreads, Entry

pytestmark = pytest.mark.django_db(transaction=True)

FROZEN = sorted(freeze.JOURNALS.glob("*/*.json"))
DATABASES = [
    pytest.param(path, id=path.name, marks=[pytest.mark.full] if path.suffix == ".sqlite3" else [])
    for path in sorted(freeze.DATABASES.iterdir())
]
ENDED = {
    "completed": "hello",
    "failed": None,
    "cancelled": None,
    "image": "A dot.",
    "approval": "It was sent.",
    "queued": f"user assistant user assistant tool assistant user, 1 images, {[SEALED]}",
    "form": "It was ordered.",
    "page": "It is filled.",
    "row": "Be brief.",
    "gate": "hello",
    "timer": "slept",
    "tree": "replied",
    "blocked": "<a>",
    "lost": "it was sent",
    "pending": "soon",
    "delayed": "later",
    "schedule": "tick",
    "follow": "news",
}
# What the frozen rows do not have, by agent and tool or model. No other call is made.
CALLS = {
    "corpus_react fetch": 1,  # the second of two
    "corpus_react big": 1,
    "corpus_react scripted": 2,
    "corpus_desk send": 1,
    "corpus_desk scripted": 2,
    "corpus_form order": 1,
    "corpus_form scripted": 1,
    "corpus_page page_fill": 1,
    "corpus_page scripted": 1,
    "corpus_row send": 1,
    "corpus_row row": 1,
    "corpus_gate corpus/limited": 1,
}
# Columns, indexes, constraints and storage options of the app's tables. Whether a column may be null is the column's:
# older servers have no constraint for it.
SCHEMA = """
    SELECT 'column', relname::text, attname::text, concat_ws(
        ' ', format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated, pg_get_expr(adbin, adrelid))
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE starts_with(relname, 'ravi_') AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT 'index', tablename::text, indexname::text, indexdef
    FROM pg_indexes WHERE starts_with(tablename, 'ravi_')
    UNION ALL SELECT 'constraint', conrelid::regclass::text, conname::text, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE starts_with(conrelid::regclass::text, 'ravi_') AND contype <> 'n'
    UNION ALL SELECT 'table', relname::text, '', coalesce(reloptions::text, '')
    FROM pg_class WHERE starts_with(relname, 'ravi_') AND relkind = 'r'
"""


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
    def test_freeze(scenario, monkeypatch):
        monkeypatch.setattr("socket.gethostname", lambda: "worker")  # the names of workers have it
        freeze.save(os.environ["FREEZE"], scenario, written(scenario))

    def test_freeze_databases(tmp_path):
        freeze.save_databases(os.environ["FREEZE"], tmp_path)


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
    assert output_of(scenario, run.output) == OUTPUTS[scenario]
    assert before > 0 or scenario in ("uncertain", "asks")
    seqs = JournalEntry.objects.filter(run=run).order_by("seq").values_list("seq", flat=True)
    assert list(seqs) == list(range(1, run.next_seq))


@pytest.mark.parametrize("path", DATABASES)
def test_a_frozen_database_is_upgraded_and_each_live_run_ends_right(path: Path, tmp_path: Path):
    with freeze.loaded(path, tmp_path) as url:
        finished = freeze.on_database("finish", url)
        if path.suffix == ".sql":
            with psycopg.connect(url) as upgraded, connection.cursor() as cursor:
                cursor.execute(SCHEMA)
                assert schema(upgraded.execute(SCHEMA)) == schema(cursor)  # the tests' own database is new

    outputs = {name: output_of(name, output) for name, (_, output) in finished["runs"].items()}
    assert outputs == ENDED | OUTPUTS
    other = {name: status for name, (status, _) in finished["runs"].items() if status != "completed"}
    assert other == {"failed": "failed", "cancelled": "cancelled"}
    assert (finished["calls"], finished["broken"]) == (CALLS, [])
    assert finished["secrets"] == [SECRET]
    assert {"ravi.turn", "ravi.blob", "ravi.ravifile", "ravi.budgetaccount"} <= {*finished["export"]}


def schema(rows):
    """Without casts and brackets: PostgreSQL writes the condition of a restored table in another form."""
    return sorted((*names, re.sub(r"::[a-z ]+(\[\])?|[()]", "", definition)) for *names, definition in rows)


def output_of(scenario, output):
    """A number that is random is left out."""
    if isinstance(OUTPUTS.get(scenario, ""), str):
        return output
    value = json.loads(output)
    if scenario == "waits":
        assert 0 <= value.pop("random") < 1
    return value


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
    Run.objects.update(schema=ENTRIES_SCHEMA + 1)
    run = drive(lease.run)
    assert (run.status, run.error["type"]) == (Status.BLOCKED, "DeterminismError")
    assert "of a later release" in run.error["message"]
