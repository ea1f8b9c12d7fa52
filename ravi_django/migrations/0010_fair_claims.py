import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ('ravi', '0009_lean_indexes'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='claim_at',
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False, help_text='When it became ready, less the head start of its priority: the earliest is claimed first'),
        ),
    ]
