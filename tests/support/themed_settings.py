"""The demo site with the admin theme RAVI_TEST_THEME: stock, unfold or jazzmin."""

import os
from pathlib import Path

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as SITE_APPS, MIDDLEWARE as SITE_MIDDLEWARE, TEMPLATES as SITE_TEMPLATES

THEME = os.environ["RAVI_TEST_THEME"]
INSTALLED_APPS = [*([] if THEME == "stock" else [THEME]), *SITE_APPS]
STRICT = "project.views.PrivatePages"  # the other themes have inline scripts
MIDDLEWARE = [one for one in SITE_MIDDLEWARE if THEME == "stock" or one != STRICT]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a real one takes half a second
TEMPLATES = [  # with the chat's panel
    {**one, "DIRS": [Path(__file__).parent / "themed_templates", *one["DIRS"]]} for one in SITE_TEMPLATES
]
ADDRESSEES = ["staff"]
JAZZMIN_SETTINGS = {"use_google_fonts_cdn": False}
JAZZMIN_UI_TWEAKS = {"default_theme_mode": "auto"}
