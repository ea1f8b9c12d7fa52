"""The demo site's settings: from nothing at all, and from URLs."""

from __future__ import annotations

import os

import pytest

from project.settings import database
from tests.support import forks


def test_load_with_no_environment_and_no_services() -> None:
    script = (
        "import django; django.setup()\n"
        "from django.conf import settings as s\n"
        "print(s.DATABASES['default']['ENGINE'], s.RAVI['ENGINE'], s.CHANNEL_LAYERS['default']['BACKEND'])"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "project.settings", "PATH": os.environ["PATH"]}

    done = forks.run(["-c", script], env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["django.db.backends.sqlite3", "inline", "channels.layers.InMemoryChannelLayer"]


def test_postgres_url_with_quoted_parts_and_options() -> None:
    settings = database("postgres://us%40er:p%2Fw@db.example:6432/my%20site?sslmode=require")

    assert settings == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "my site",
        "USER": "us@er",
        "PASSWORD": "p/w",
        "HOST": "db.example",
        "PORT": "6432",
        "OPTIONS": {"sslmode": "require"},
    }


@pytest.mark.parametrize(
    ("url", "name"), [("sqlite:////var/site.sqlite3", "/var/site.sqlite3"), ("sqlite:///site.sqlite3", "site.sqlite3")]
)
def test_sqlite_url_takes_the_write_lock_at_once(url: str, name: str) -> None:
    settings = database(url)

    assert settings["NAME"] == name
    assert settings["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in settings["OPTIONS"]["init_command"]


def test_another_database_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"begins with 'mysql': use postgres://… or sqlite:///…"):
        database("mysql://localhost/site")
