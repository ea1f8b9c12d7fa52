"""The sockets' addresses, for the site's ASGI router, at the site's root; elsewhere, RAVI["SOCKET_PATH"] says where.

Wrap them in channels' AuthMiddlewareStack to let browsers in by their session cookie; without it tickets alone work.
Origins are checked here: AllowedHostsOriginValidator around them would shut out the programs that come with a ticket.
"""

from django.urls import re_path

from ravi_django.ws.consumer import UnknownPath
from ravi_django.ws.requests import RequestsConsumer
from ravi_django.ws.session import RunConsumer, SessionConsumer

websocket_urlpatterns = [
    re_path(r"^ws/ravi/runs/(?P<id>[^/]+)/$", RunConsumer.as_asgi()),
    re_path(r"^ws/ravi/sessions/(?P<id>[^/]+)/$", SessionConsumer.as_asgi()),
    re_path(r"^ws/ravi/requests/$", RequestsConsumer.as_asgi()),
    re_path(r"^ws/ravi/", UnknownPath.as_asgi()),
]
