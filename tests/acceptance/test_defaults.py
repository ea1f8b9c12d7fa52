"""A site that has set nothing, and one whose `agents.py` is something else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from django.core.management import call_command

from tests.support import forks, template
from tests.support.patience import seconds

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
AGENT = """
from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.testing import ScriptedModel

register(ReActAgent("helper", model=ScriptedModel(["It left this morning."])))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    call_command("startproject", "mysite", tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    with (tmp_path / "mysite/settings.py").open("a") as settings:
        settings.write('\nINSTALLED_APPS += ["channels", "rest_framework", "ravi_django", "shop"]\n')
    template.sqlite(tmp_path / "db.sqlite3")
    return tmp_path


def run_it(site: Path) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    argv = ["manage.py", "ravi_run", "react/helper", "Where is order 7?"]
    environment = {**kept, "PYTHONPATH": str(ROOT)}
    return forks.run(argv, cwd=site, env=environment, capture_output=True, text=True, timeout=seconds(40))


def test_with_nothing_set_an_agent_answers(site: Path) -> None:
    (site / "shop/agents.py").write_text(AGENT)

    ran = run_it(site)

    assert ran.returncode == 0, ran.stderr
    assert "It left this morning." in ran.stdout


def test_agents_are_found_in_the_module_of_the_settings(site: Path) -> None:
    (site / "shop/agents.py").write_text("raise RuntimeError('the people of an estate office')\n")
    (site / "shop/assistants.py").write_text(AGENT)
    with (site / "mysite/settings.py").open("a") as settings:
        settings.write('RAVI = {"AGENTS_MODULE": "assistants"}\n')

    ran = run_it(site)

    assert ran.returncode == 0, ran.stderr
    assert "It left this morning." in ran.stdout
