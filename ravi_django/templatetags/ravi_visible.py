r"""`{{ text|visible }}`: what comes from outside, with nothing hidden in it. See `kernel.visible`."""

from __future__ import annotations

from typing import Any

from django import template

from ravi_django.kernel.visible import visible as made_visible

register = template.Library()


@register.filter
def visible(value: Any) -> str:
    """A plain text, which the template escapes as any other."""
    return "" if value is None else made_visible(str(value))
