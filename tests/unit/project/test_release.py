"""Facts of a release that two files state."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from ravi_django import __version__

ROOT = Path(__file__).parents[3]


def test_the_pins_name_the_dependencies_of_a_deployment() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["postgres"], *extras["openapi"], *extras["files"]]

    pins = [Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines() if line[0] != "#"]

    names = {Requirement(one).name for one in needed} | {"uvicorn", "whitenoise"}
    assert sorted(pin.name for pin in pins) == sorted(names)
    assert all(str(pin.specifier).startswith("==") for pin in pins)


def test_the_newest_version_of_the_changelog_is_the_version_of_the_package() -> None:
    versions = re.findall(r"^## \[(\d[\d.]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__
