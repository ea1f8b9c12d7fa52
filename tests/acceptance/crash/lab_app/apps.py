from django.apps import AppConfig


class LabConfig(AppConfig):
    name = "tests.acceptance.crash.lab_app"
    label = "lab"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tests.acceptance.crash.lab_app import crash_points

        crash_points.install()
