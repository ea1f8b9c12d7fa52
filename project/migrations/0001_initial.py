from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=200)),
                ("amount", models.DecimalField(decimal_places=2, max_digits=12)),
                ("idempotency_key", models.CharField(max_length=100)),
                ("sent_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ["-sent_at"]},
        ),
    ]
