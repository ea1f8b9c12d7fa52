r"""`{{ text|visible }}`: what comes from outside, with nothing hidden in it, see `kernel.visible`; `{{ time|moment }}`;
and `{% socket "requests" %}`, the address of a socket."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template

from ravi_django.kernel.visible import visible as made_visible
from ravi_django.pages import show
from ravi_django.runtime import links

register = template.Library()
register.simple_tag(links.socket)


@register.filter
def visible(value: Any) -> str:
    """A plain text, which the template escapes as any other."""
    return "" if value is None else made_visible(str(value))


@register.filter
def moment(at: datetime | None) -> str:
    return show.moment(at)
