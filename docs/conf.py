"""The site of the docs: `make docs`. The pages are plain Markdown, and can be read without it."""

import logging
import os
import sys
from pathlib import Path

import django
from django.conf import settings

import ravi_django

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
settings.configure(
    INSTALLED_APPS=[*(f"django.contrib.{app}" for app in ("admin", "auth", "contenttypes", "messages")), "ravi_django"],
    ROOT_URLCONF="ravi_django.urls",
    USE_TZ=True,
)
django.setup()  # the reference imports the package

project = "ravi_django"
copyright = "the authors of ravi_django"
version = release = ravi_django.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.intersphinx",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_llms_txt",
    "ravi_objects",
    "ravi_api",
]
exclude_patterns = ["_build"]
highlight_language = "none"  # of indented blocks, most of which are commands
suppress_warnings = ["misc.highlighting_failure"]  # of templates in HTML, and of bodies in HTTP

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors of GitHub

# Names of other projects in code spans are links: see _ext/ravi_objects.py. A build without a network leaves them out.
# The docs of the REST framework have no inventory.
intersphinx_mapping = (
    {
        "python": ("https://docs.python.org/3", None),
        "django": ("https://docs.djangoproject.com/en/stable/", None),
        "celery": ("https://docs.celeryq.dev/en/stable/", None),
        "pydantic": ("https://docs.pydantic.dev/latest/", None),
    }
    if os.environ.get("READTHEDOCS")
    else {}
)
intersphinx_timeout = 10  # seconds


def can_reach(record):
    """A site that does not answer is no error of these pages. Its warning has no type for `suppress_warnings`."""
    return not record.getMessage().startswith("failed to reach any of the inventories")


logging.getLogger("sphinx.sphinx.ext.intersphinx").addFilter(can_reach)

html_theme = "furo"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_title = f"ravi_django {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
