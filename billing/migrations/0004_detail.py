"""What closed statements were made of, kept before their month is computed again; never changed after that."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0003_unchecked_copies"),
    ]

    operations = [
        migrations.CreateModel(
            name="StatementDetail",
            fields=[
                (
                    "statement",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="detail",
                        serialize=False,
                        to="billing.statement",
                    ),
                ),
                ("content", models.BinaryField()),
                ("sha256", models.CharField(max_length=64)),
                ("recorded_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.RunSQL(
            "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_statementdetail "
            "FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()",
            "DROP TRIGGER append_only ON billing_statementdetail",
        ),
    ]
