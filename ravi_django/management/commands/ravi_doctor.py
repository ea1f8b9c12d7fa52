"""`manage.py ravi_doctor`: the faults of this installation, each with its fix."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ravi_django import wing
from ravi_django.kernel import UnsupportedError
from ravi_django.management import diagnosis


class Command(BaseCommand):
    help = "List the faults of this installation and how to fix them. Exit status 1 if there is an error."
    requires_system_checks: list[str] = []  # the doctor runs them

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--rekey", action="store_true", help="only encrypt all secrets again with the present SECRET_KEY"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["rekey"]:
            self._rekey()
            return
        findings = diagnosis.examine()
        styles = {"ok": self.style.SUCCESS, "warning": self.style.WARNING, "error": self.style.ERROR}
        for finding in findings:
            self.stdout.write(f"{styles[finding.level](f'{finding.level:8}')} {finding.what}")
            if finding.fix:
                self.stdout.write(f"         fix: {finding.fix}")
        counts = {level: sum(finding.level == level for finding in findings) for level in styles}
        self.stdout.write(f"ravi_doctor: ok={counts['ok']} warnings={counts['warning']} errors={counts['error']}")
        if counts["error"]:
            raise SystemExit(1)

    def _rekey(self) -> None:
        try:
            written, closed = wing.call("ravi_doctor --rekey")()
        except UnsupportedError as error:
            raise CommandError(str(error)) from None
        for fault in closed:
            self.stdout.write(f"{self.style.ERROR('error   ')} {fault}")
        self.stdout.write(f"ravi_doctor: rekeyed={written} errors={len(closed)}")
        if closed:
            raise SystemExit(1)
