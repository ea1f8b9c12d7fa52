from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('ravi', '0016_erasure_indexes'),
    ]

    operations = [
        migrations.AddField(
            model_name='erasure',
            name='runs',
            field=models.JSONField(help_text='Live runs in whose journals the name is until they end', null=True),
        ),
    ]
