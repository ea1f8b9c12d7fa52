from django.db import migrations, models
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce

from ravi_django.migrations import _live


class Migration(migrations.Migration):
    # Built beside the writers; done again after an interruption, it leaves what stands.
    atomic = False

    dependencies = [
        ('ravi', '0018_run_forks'),
    ]

    operations = [
        _live.AddIndex(
            model_name='auditrecord',
            index=models.Index(Coalesce(KeyTextTransform('revoked_by', 'detail'), KeyTextTransform('by', 'detail')), condition=models.Q(('event', 'request')), name='ravi_audit_by'),
        ),
    ]
