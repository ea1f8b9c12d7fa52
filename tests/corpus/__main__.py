"""`python -m tests.corpus write` migrates the empty database at DATABASE_URL and writes runs in all states. `finish`
migrates a database that an earlier release wrote, executes its live runs, and prints the outcomes as JSON."""

import json
import os
import sys

import django
from django.conf import settings

from project.settings import database

settings.configure(
    SECRET_KEY="of-the-frozen-databases",
    USE_TZ=True,
    DATABASES={"default": database(os.environ["DATABASE_URL"])},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "channels", "rest_framework", "ravi_django"],
    STORAGES={"default": {"BACKEND": "django.core.files.storage.InMemoryStorage"}},
    RAVI={
        "ENGINE": "manual",
        "LIMITS": None,
        "MIDDLEWARE": ["tests.corpus.database.CountModels", "tests.corpus.database.CountTools"],
    },
)
django.setup()

from django.core.management import call_command  # noqa: E402

from tests.corpus import database as commands  # noqa: E402

call_command("migrate", verbosity=0)
print(json.dumps({"write": commands.write, "finish": commands.finish}[sys.argv[1]]()))
