from django.db import migrations, models

# Months that are closed were closed with what stands of them; a price that nobody answered for came to lack later.
SEEN = """
UPDATE billing_billingfinding finding SET seen_quantity = quantity
FROM ledger_period period
WHERE period.month = finding.month AND period.state = 3 AND finding.quantity IS NOT NULL
  AND (finding.code <> 'price_missing' OR EXISTS (
    SELECT 1 FROM billing_checklistwaiver waiver WHERE waiver.period_id = period.month AND waiver.item = 'prices'))
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0029_counted_tokens")]

    operations = [
        migrations.AddField(
            "billingfinding", "seen_quantity", models.BigIntegerField(default=0, db_default=0)
        ),
        migrations.RunSQL(SEEN, migrations.RunSQL.noop),
    ]
