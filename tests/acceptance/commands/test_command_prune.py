"""`manage.py ravi_prune`: what it says. What it removes: tests/unit/runtime/test_prune.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from ravi_django.models import Run
from tests.support.runs import code, drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_says_what_it_removes_by_its_option_or_by_the_setting(settings: Any, capsys: Any) -> None:
    async def nothing(ctx: Any, inbox: Any) -> None: ...

    def said(*arguments: str) -> str:
        call_command("ravi_prune", *arguments)
        return str(capsys.readouterr().out)

    code(nothing)
    old, young = drive(make_run()), drive(make_run())
    Run.objects.filter(id=old.id).update(finished_at=timezone.now() - timedelta(days=40))
    rows = old.journal.count()

    assert said().startswith("ravi_prune: RAVI['RETENTION'] keeps everything; --older-than 30d overrides it\n")
    assert said("--older-than", "30d", "--dry-run").startswith(f"ravi_prune: would remove journal={rows} ")
    assert old.journal.count() == rows > 1
    settings.RAVI = {**settings.RAVI, "RETENTION": 30}
    assert said().startswith(f"ravi_prune: removed journal={rows} ")
    assert (old.journal.count(), young.journal.exists()) == (0, True)
    with pytest.raises(CommandError, match="'30' is not a duration such as 30d"):
        said("--older-than", "30")
