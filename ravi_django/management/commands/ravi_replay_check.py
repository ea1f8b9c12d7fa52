"""`manage.py ravi_replay_check`: whether live runs match the code on disk. Run it before a deploy."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections

from ravi_django.engine.db.threads import DatabaseThreads
from ravi_django.engine.worker import rehearse
from ravi_django.engine.worker.rehearse import Verdict


class Command(BaseCommand):
    help = (
        "Replay every live run's journal against the agents of this checkout, without calling, writing or sending "
        "anything. Exit status 1 and a list of the runs that would be blocked or fail."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--agent", metavar="TYPE/KEY", help="only the runs of this agent")
        parser.add_argument("--json", action="store_true", help="one object a line for every run that does not match")

    def handle(self, *args: Any, **options: Any) -> None:
        checked = broken = drifted = 0
        for verdict in asyncio.run(_all(options["agent"])):
            checked += 1
            drifted += bool(verdict.drift)
            if verdict.error is not None:
                broken += 1
                self.stdout.write(_as_json(verdict) if options["json"] else _as_text(verdict))
        if not options["json"]:
            self.stdout.write(f"ravi_replay_check: runs={checked} broken={broken} drifted={drifted}")
        if broken:
            sys.exit(1)


async def _all(agent: str | None) -> list[Verdict]:
    database = DatabaseThreads(1, "ravi-replay")
    try:
        runs = await database.call(lambda: list(rehearse.live_runs(agent)))
        return [await rehearse.rehearse(run, database) for run in runs]
    finally:
        await asyncio.to_thread(database.close)
        await asyncio.to_thread(connections.close_all)


def _as_json(verdict: Verdict) -> str:
    return json.dumps({"run": str(verdict.run_id), "agent": verdict.agent, "error": verdict.error}, ensure_ascii=False)


def _as_text(verdict: Verdict) -> str:
    error = verdict.error or {}
    lines = [f"{verdict.agent} {verdict.run_id}: {error.get('type')}: {error.get('message')}"]
    if diff := error.get("diff"):
        lines += [f"    {name}: {json.dumps(diff[name], ensure_ascii=False)}" for name in ("recorded", "asked")]
    return "\n".join(lines)
