import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django_application = get_asgi_application()  # sets Django up, which the imports below need

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from ravi_django.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": django_application,
        # The consumers check session, Origin and tickets: programs, which send no Origin, come in by ticket.
        "websocket": URLRouter(websocket_urlpatterns),
    }
)
