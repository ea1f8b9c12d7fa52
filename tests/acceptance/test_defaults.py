"""A site that has set nothing but where its agents are, since its `agents.py` is something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.core.management import call_command

from tests.support import forks, template
from tests.support.patience import seconds

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "shop/__init__.py": "",
    "shop/agents.py": "raise RuntimeError('the people of an estate office')",
    "shop/assistants.py": "raise RuntimeError('the package of this name is imported')",
    "shop/assistants/__init__.py": "",
    "shop/assistants/test_helper.py": "raise RuntimeError('a test is not imported')",
    "shop/assistants/helper.py": """
from ravi_django import register
from ravi_django.agents import ReActAgent
from ravi_django.testing import ScriptedModel

register(ReActAgent("helper", model=ScriptedModel(["It left this morning."])))
""",
}
SETTINGS = """
INSTALLED_APPS += ["channels", "rest_framework", "ravi_django", "shop"]
RAVI = {"AGENTS_MODULE": "assistants"}
"""


def test_agents_are_registered_by_the_modules_of_the_package_of_the_settings(tmp_path: Path) -> None:
    call_command("startproject", "mysite", tmp_path)
    (tmp_path / "shop" / "assistants").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "mysite/settings.py").open("a") as settings:
        settings.write(SETTINGS)
    template.sqlite(tmp_path / "db.sqlite3")
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    argv = ["manage.py", "ravi_run", "react/helper", "Where is order 7?"]

    ran = forks.run(
        argv, cwd=tmp_path, env=kept | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=seconds(40)
    )

    assert ran.returncode == 0, ran.stderr
    assert "It left this morning." in ran.stdout
    assert "shop/assistants.py is not imported" in ran.stderr
