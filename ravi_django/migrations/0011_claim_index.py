from django.db import migrations, models

from ravi_django.migrations import _live


class Migration(migrations.Migration):
    # The new index is built beside the writers, and comes before the old one goes.
    atomic = False

    dependencies = [
        ('ravi', '0010_fair_claims'),
    ]

    operations = [
        _live.AddIndex(
            model_name='run',
            index=models.Index(models.Case(models.When(agent_version=None, then='agent'), default=models.Value('')), models.F('claim_at'), models.F('id'), condition=models.Q(('status', 'pending')), name='ravi_run_ready'),
        ),
        migrations.RemoveIndex(
            model_name='run',
            name='ravi_run_claimable',
        ),
    ]
