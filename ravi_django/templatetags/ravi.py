"""`{% load ravi %}`: `{% ravi_chat "react/shop" %}` in a page of the site, `{% ravi_admin_chat %}` in the admin."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.safestring import SafeString

from ravi_django.ui import chat

register = template.Library()


@register.simple_tag(takes_context=True)
def ravi_chat(context: Any, agent: str = "") -> SafeString:
    return chat.chat_panel(context.get("request"), agent)


@register.simple_tag(takes_context=True)
def ravi_admin_chat(context: Any, agent: str = "") -> SafeString:
    return chat.admin_panel(context, agent)
