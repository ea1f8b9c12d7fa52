from django.db import migrations, models

from ravi_django.migrations import _live


class Migration(migrations.Migration):
    # The index is built beside the writers, and first: done again after an interruption, it leaves what stands.
    atomic = False

    dependencies = [
        ('ravi', '0012_secrets'),
    ]

    operations = [
        _live.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('status', 'queued')), fields=['owner'], name='ravi_run_queued_owner'),
        ),
        migrations.AddField(
            model_name='ticket',
            name='credential',
            field=models.JSONField(help_text='What it was asked for with: a socket belongs to that', null=True),
        ),
    ]
