"""What `manage.py check` and the doctor say of sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ravi_django.checks import check_source_places
from ravi_django.management import diagnosis
from ravi_django.models import Source


def ids(settings: Any, **given: Any) -> list[str]:
    settings.RAVI = {**settings.RAVI, **given}
    return [str(found.id) for found in check_source_places()]


def test_the_defaults_are_fine(settings):
    assert ids(settings) == []


def test_roots_that_are_directories_are_fine(settings, tmp_path):
    assert ids(settings, DROP_ROOTS=[str(tmp_path), tmp_path]) == []


@pytest.mark.parametrize("root", ["/no/such/place", "relative", ".", "", None, 5, __file__])
def test_a_root_that_is_no_directory_is_named(settings, root):
    assert ids(settings, DROP_ROOTS=[root]) == ["ravi.E018"]
    assert repr(root) in check_source_places()[0].msg


def test_one_text_is_no_list(settings, tmp_path):
    assert ids(settings, DROP_ROOTS=str(tmp_path), SOURCE_MODELS="project.Invoice") == ["ravi.E018", "ravi.E019"]


@pytest.mark.parametrize("name", ["project.Nope", "nope", "ravi.Run", "ravi", "", "a.b.c", None])
def test_a_model_that_is_not_there_is_named(settings, name):
    assert ids(settings, SOURCE_MODELS=["project.Invoice", name]) == ["ravi.E019"]


def findings() -> list[tuple[str, str]]:
    return [(found.level, found.what) for found in diagnosis.sources()]


@pytest.mark.django_db
def test_the_doctor_says_nothing_where_there_are_no_sources():
    assert findings() == []


@pytest.mark.django_db
def test_the_doctor_names_the_sources_that_fail():
    def made(name: str, kind: str = "feed", **fields: Any) -> None:
        Source.objects.create(name=name, kind=kind, agent="test/code", **fields)

    made("fine")
    made("bad\u202e", failures=4, error="no\n answer <b>\x07" + "x" * 900)
    made("hook", kind="webhook")
    made("switched off", enabled=False, error="gone", failures=9)

    (first, failing, silent) = findings()

    assert first == ("ok", "sources: 3 enabled")
    assert failing[0] == silent[0] == "warning"
    assert (
        failing[1].startswith("sources: bad\\u202e, 4 times in a row: no answer <b>\\u0007xxx")
        and len(failing[1]) < 400
    )
    assert silent[1] == "sources: hook: it has no secret, and takes nothing"
    for number in range(10):
        made(str(number), error="no")
    assert findings()[-1] == ("warning", "sources: 7 more have an error")


@pytest.mark.django_db
def test_each_finding_has_a_mend():
    Source.objects.create(name="bad", agent="test/code", error="no")

    assert all(found.mend for found in diagnosis.sources() if found.level != "ok")


def test_the_settings_are_documented():
    page = (Path(__file__).resolve().parents[3] / "docs/settings.md").read_text()

    assert "`DROP_ROOTS`" in page and "`SOURCE_MODELS`" in page
