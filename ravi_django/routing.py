"""The URL patterns of the sockets, for the root of the site's ASGI router. For another place set RAVI["SOCKET_PATH"].

The sockets read the session cookie, or a ticket. A middleware that sets `scope["user"]` replaces the cookie.
The consumers check origins. AllowedHostsOriginValidator would also refuse programs that connect with a ticket.
"""

from django.urls import re_path

from ravi_django.ws.consumer import RunConsumer, SessionConsumer, TopicConsumer, UnknownPath
from ravi_django.ws.requests import RequestsConsumer

websocket_urlpatterns = [
    re_path(r"^ws/ravi/runs/(?P<id>[^/]+)/$", RunConsumer.as_asgi()),
    re_path(r"^ws/ravi/sessions/(?P<id>[^/]+)/$", SessionConsumer.as_asgi()),
    re_path(r"^ws/ravi/topics/(?:(?P<namespace>[^/]+)/)?(?P<type>[^/]+)/(?P<source>[^/]+)/$", TopicConsumer.as_asgi()),
    re_path(r"^ws/ravi/requests/$", RequestsConsumer.as_asgi()),
    re_path(r"^ws/ravi/", UnknownPath.as_asgi()),
]
