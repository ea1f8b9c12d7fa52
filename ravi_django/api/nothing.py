"""Whatever else lies under the mount: nothing, said in our shape."""

from __future__ import annotations

from typing import Any

from django.urls import Resolver404, resolve
from rest_framework.exceptions import NotFound

from ravi_django.api.base import ApiView


class NothingView(ApiView):
    schema = None

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Before the method is looked at: there is none here to allow. Credentials come first all the same."""
        super().initial(request, *args, **kwargs)
        raise NotFound(f"there is nothing at {request.path}{_hint(request.path_info)}")


def _hint(path: str) -> str:
    """The slash at the end is the usual mistake."""
    if path.endswith("/"):
        return ""
    try:
        found = resolve(f"{path}/")
    except Resolver404:
        return ""
    return "" if getattr(found.func, "view_class", None) is NothingView else "; add a slash at the end"
