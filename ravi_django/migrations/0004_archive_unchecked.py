import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ravi", "0003_waiting"),
    ]

    operations = [
        migrations.AlterField(
            model_name="run",
            name="archive",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="ravi.blob",
            ),
        ),
    ]
