r"""`{{ text|visible }}`: foreign text without hidden characters, see `kernel.visible`; `{{ time|moment }}`;
`{{ row.status|word }}`; `{% ravi_words %}`, for `requests.js`; and `{% socket "requests" %}`, a socket's address."""

from __future__ import annotations

from typing import Any

from django import template

from ravi_django.kernel.visible import visible as made_visible
from ravi_django.models.names import word as translated
from ravi_django.pages import formats
from ravi_django.pages.texts import script_texts
from ravi_django.people import mail

register = template.Library()
register.simple_tag(mail.socket)
register.simple_tag(script_texts, name="ravi_words")
register.filter(formats.moment)


@register.filter
def visible(value: Any) -> str:
    """A plain text; the template escapes it."""
    return "" if value is None else made_visible(str(value))


@register.filter
def word(value: Any) -> Any:
    """A word of a row in the reader's language."""
    return translated(value) if isinstance(value, str) else value
