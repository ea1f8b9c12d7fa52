from django.apps import AppConfig
from django.db import router
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_save
from django.utils.autoreload import autoreload_started
from django.utils.translation import gettext_lazy as _

from ravi_django.db import Router


class RaviConfig(AppConfig):
    name = "ravi_django"
    label = "ravi"
    verbose_name = _("AI agents")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        router.routers.insert(0, Router())
        from ravi_django import checks, site_checks, tasks  # noqa: F401 - registered by the import
        from ravi_django.calls import builtin
        from ravi_django.engine.db.connections import limit_new_connection
        from ravi_django.engine.worker.server import start_with_server
        from ravi_django.live.streams.buffer import on_request_changed
        from ravi_django.people.mail import on_request
        from ravi_django.runs.catalog import registry
        from ravi_django.runs.catalog.rows import check_fixture, sync_after_migrate
        from ravi_django.runs.files import files
        from ravi_django.runs.lifecycle import erasing
        from ravi_django.signals import request_answered, request_changed, request_closed, request_opened

        connection_created.connect(limit_new_connection, dispatch_uid="ravi.limit_waits")
        post_migrate.connect(sync_after_migrate, sender=self, dispatch_uid="ravi.sync_agents")
        for model in ("Agent", "AgentVersion"):
            pre_save.connect(check_fixture, sender=self.get_model(model), dispatch_uid=f"ravi.fixture.{model}")
        for signal in (request_opened, request_answered, request_closed, request_changed):
            signal.connect(on_request_changed, dispatch_uid="ravi.hints")
        erasing.connect()
        files.connect()
        for signal in (request_opened, request_changed):
            signal.connect(on_request, dispatch_uid="ravi.mail")
        registry.register_built_in(builtin.built_in)
        registry.autodiscover()
        autoreload_started.connect(registry.watch_modules, dispatch_uid="ravi.watch_agents")
        start_with_server()
