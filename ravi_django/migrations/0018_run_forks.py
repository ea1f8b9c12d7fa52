from django.db import migrations, models

from ravi_django.migrations import _live


class Migration(migrations.Migration):
    # Done beside the writers; done again after an interruption, it leaves what stands.
    atomic = False

    dependencies = [
        ('ravi', '0017_erasure_runs'),
    ]

    operations = [
        _live.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('forked_from__isnull', False)), fields=['forked_from'], name='ravi_run_forks'),
        ),
    ]
