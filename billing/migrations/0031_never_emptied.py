"""The guarded tables of billing refuse TRUNCATE as those of the ledger do."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("billing", "0030_seen_findings"), ("ledger", "0017_never_emptied")]

    # Back, the triggers go with their function.
    operations = [migrations.RunSQL("CALL ledger_guard_against_emptying()", migrations.RunSQL.noop)]
