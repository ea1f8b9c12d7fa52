"""`manage.py check` on the settings of e-mails."""

from __future__ import annotations

import pytest

from ravi_django.checks import check_request_email


@pytest.fixture
def found(settings):
    def check(**given):
        settings.RAVI = {**settings.RAVI, **given}
        return [message.id for message in check_request_email()]

    return check


@pytest.mark.parametrize("given", [None, "https://example.com", "http://127.0.0.1:8000/", "https://example.com/site"])
def test_a_good_address(found, given):
    assert found(REQUEST_EMAIL=given) == []


@pytest.mark.parametrize(
    "given",
    [
        "example.com",
        "",
        "ann@example.com",
        "ftp://x.org",
        True,
        ["https://x.org"],
        "https://",
        "https://x/?a=b",
        "http://[x",
    ],
)
def test_a_bad_address(found, given):
    assert found(REQUEST_EMAIL=given) == ["ravi.E015"]


@pytest.mark.parametrize("given", [0, -1, True, None, "7"])
def test_a_bad_time(found, given):
    assert found(REQUEST_LINK_S=given) == ["ravi.E015"]


def test_a_page_that_is_not_mounted(found, settings):
    settings.ROOT_URLCONF = "django.contrib.auth.urls"

    assert found() == []
    assert found(REQUEST_EMAIL="https://example.com") == ["ravi.W006"]
