from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ledger", "0010_must_change_password"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="usagehour",
            index=models.Index(
                condition=models.Q(("identity__isnull", True)), fields=["hour"], name="usage_hour_engine"
            ),
        ),
    ]
