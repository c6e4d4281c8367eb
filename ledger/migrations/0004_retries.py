from django.db import migrations

# Retries are few: what was asked for counts each request once, and finds the attempts that a later one followed without
# reading whole days of requests.
INDEXES = """
CREATE INDEX request_retried ON ledger_request (request) WHERE attempt > 1;
CREATE INDEX request_unfinished ON ledger_request (ends_at) WHERE outcome IN (2, 3, 4, 5);
"""


class Migration(migrations.Migration):
    dependencies = [("ledger", "0003_audit")]

    operations = [
        migrations.RunSQL(INDEXES, "DROP INDEX request_retried; DROP INDEX request_unfinished"),
    ]
