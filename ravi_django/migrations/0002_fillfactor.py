"""Leave room on the pages of runs and sessions, so that an append's update stays on its page (HOT)."""

from django.db import migrations

TABLES = ("ravi_run", "ravi_session")


def leave_room(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for table in TABLES:
            schema_editor.execute(f"ALTER TABLE {table} SET (fillfactor = 70)")


def take_back(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for table in TABLES:
            schema_editor.execute(f"ALTER TABLE {table} RESET (fillfactor)")


class Migration(migrations.Migration):
    dependencies = [("ravi", "0001_initial")]

    operations = [migrations.RunPython(leave_room, take_back)]
