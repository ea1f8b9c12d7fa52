"""`manage.py ravi_prune`: remove old rows."""

from __future__ import annotations

import argparse
import re
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ravi_django.kernel import InvalidInputError
from ravi_django.runs.lifecycle import prune

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": prune.DAY_S, "w": 7 * prune.DAY_S}


def duration(text: str) -> float:
    """Seconds. Raises ArgumentTypeError."""
    match = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,5})?)([smhdw])", text, re.ASCII)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30d, 12h, 90m, 2w or 45s")
    return float(match[1]) * _UNITS[match[2]]


class Command(BaseCommand):
    help = (
        "Remove journals, event streams, consumed signals, settled asks and messages of trees of runs that ended long "
        "ago and of past generations, bodies without a reference, and expired tickets. Runs, their inputs, their "
        "outputs and conversations stay unless RAVI['RETENTION'] names them. Rows that a live run reads stay. Safe "
        "while workers run, and safe to interrupt. A pruned run can be neither retried nor forked."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--older-than", type=duration, help="such as 30d; by default RAVI['RETENTION']")
        parser.add_argument("--dry-run", action="store_true", help="remove nothing, only count")

    def handle(self, *args: Any, **options: Any) -> None:
        older_than = options["older_than"]
        try:
            keep = prune.retention() if older_than is None else dict.fromkeys(prune.KINDS, older_than)
        except InvalidInputError as error:
            raise CommandError(f"RAVI: {error}") from None
        if not keep:
            self.stdout.write("ravi_prune: RAVI['RETENTION'] keeps everything; --older-than 30d overrides it")
        removed = prune.prune(keep, dry_run=options["dry_run"])
        counts = " ".join(f"{name}={count}" for name, count in removed.items())
        self.stdout.write(f"ravi_prune: {'would remove' if options['dry_run'] else 'removed'} {counts}")
