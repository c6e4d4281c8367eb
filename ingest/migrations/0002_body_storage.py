"""Bodies are read in pieces: uncompressed storage lets PostgreSQL fetch one without unpacking the whole."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("ingest", "0001_initial")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE ingest_batch ALTER COLUMN body SET STORAGE EXTERNAL",
            "ALTER TABLE ingest_batch ALTER COLUMN body SET STORAGE EXTENDED",
        ),
    ]
