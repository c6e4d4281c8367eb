from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0022_attempts"),
    ]

    operations = [
        migrations.AddField(
            model_name="deviation",
            name="code",
            field=models.CharField(blank=True, max_length=60),
        ),
        migrations.AddField(
            model_name="deviation",
            name="values",
            field=models.JSONField(default=dict),
        ),
        migrations.AlterField(
            model_name="deviation",
            name="problem",
            field=models.TextField(blank=True),
        ),
    ]
