"""A fault in the settings about people is said by `manage.py check`, with the place and the fix."""

from io import StringIO

import pytest
from django.core.management import call_command

from ravi_django.checks import check_settings
from tests.support.cases import case

NO_FUNCTION = 7


def found(settings, **given):
    settings.RAVI = {**settings.RAVI, **given}
    return [problem for problem in check_settings() if problem.id in ("ravi.E012", "ravi.E013", "ravi.E014")]


def test_addressees(settings):
    steps = {"steps": [{"to": "staff", "within": 60}], "four_eyes": True}
    by_tool = {"refund": [("group:a", 60), "staff"], "critical": None, "*": "staff"}
    for sound in ({}, {"question": None}, {"question": "group:a", "approval": by_tool}, {"approval": steps}):
        with case(sound):
            assert found(settings, ADDRESSEES=sound) == []
    for given, words in [
        ("staff", "not a dict"),
        ({"approvals": "staff"}, "unknown kind 'approvals'"),
        ({"question": "everybody"}, "['question']: "),
        ({"question": "group:"}, "is no address"),
        ({"approval": {"refund": "boss"}}, "['approval']['refund']"),
        ({"approval": [("group:a", 0), "staff"]}, "greater than 0"),
        ({"approval": ["group:a", "group:b"]}, "has no time limit"),
        ({"budget": {"to": "staff", "wihtin": 5}}, "wihtin"),
        ({"uncertain": 5}, "valid string"),
    ]:
        (problem,) = found(settings, ADDRESSEES=given)
        with case(given):
            assert (problem.id, words in problem.msg, "group:finance" in problem.hint) == ("ravi.E012", True, True)


@pytest.mark.parametrize("name", ["MAY_ANSWER", "TENANT_OF", "LANGUAGE_OF"])
def test_hooks_and_switches(settings, name):
    for given in (7, "no.such.module", f"{__name__}.NO_FUNCTION", f"{__name__}.gone", "nodots"):
        (problem,) = found(settings, **{name: given})
        assert (problem.id, name in problem.msg, name in problem.hint) == ("ravi.E013", True, True), given

    for given in (None, len, f"{__name__}.found"):
        assert found(settings, **{name: given}) == []
    (problem,) = found(settings, FOUR_EYES="yes")
    assert problem.id == "ravi.E014"


@pytest.mark.django_db
def test_the_doctor_says_so_too(settings):
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": "no.such.module"}
    out = StringIO()

    with pytest.raises(SystemExit):
        call_command("ravi_doctor", stdout=out)

    assert "ravi.E013" in out.getvalue()
