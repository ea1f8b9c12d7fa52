"""`manage.py ravi_sweep`: one sweep, for cron or manual use."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from ravi_django.conf import conf
from ravi_django.engine.worker import sweep
from ravi_django.runs import hints


class Command(BaseCommand):
    help = (
        "Sweep once: hint runs whose hint was lost or whose worker died, start queued runs whose turn it is, and "
        "publish missing frames. Celery beat and ravi_worker do this automatically."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        inline = conf.ENGINE == "inline"
        # This process ends at once and must not start runs.
        swept = sweep.sweep((lambda run_ids: None) if inline else hints.send_many)
        if not swept.ran:
            self.stdout.write("ravi_sweep: another sweep is at work")
            return
        self.stdout.write(f"ravi_sweep: hinted={swept.hinted} promoted={swept.promoted} published={swept.published}")
        if inline and swept.hinted + swept.promoted:
            self.stdout.write("RAVI['ENGINE'] is inline: manage.py ravi_worker executes them")
