import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ledger", "0013_closed_with"),
    ]

    operations = [
        migrations.AlterField(
            model_name="dirtyspan",
            name="pool",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="dirty_spans",
                to="ledger.pool",
            ),
        ),
    ]
