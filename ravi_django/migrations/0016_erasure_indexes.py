import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from ravi_django.migrations import _live


class Migration(migrations.Migration):
    # Each is done beside the writers; done again after an interruption, it leaves what stands.
    atomic = False

    dependencies = [
        ('ravi', '0015_erasures'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        _live.AlterField(
            model_name='auditrecord',
            name='owner',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        _live.AlterField(
            model_name='publication',
            name='owner',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        _live.AddIndex(
            model_name='blob',
            index=models.Index(condition=models.Q(('erase_at__isnull', False)), fields=['erase_at'], name='ravi_blob_to_erase'),
        ),
        _live.AddIndex(
            model_name='session',
            index=models.Index(condition=models.Q(('erasure__isnull', False)), fields=['erasure', 'id'], name='ravi_session_to_erase'),
        ),
    ]
