from django.db import migrations, models

# What a run ended with becomes a list; the finished text of runs until now stays in it as it is.
TAKE_OVER = "UPDATE billing_closerun SET outcome = jsonb_build_array(message) WHERE message <> ''"
GIVE_BACK = """
UPDATE billing_closerun SET message = outcome ->> 0
WHERE jsonb_array_length(outcome) = 1 AND jsonb_typeof(outcome -> 0) = 'string'
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0024_waiting_parts")]

    operations = [
        migrations.AddField("closerun", "outcome", models.JSONField(default=list)),
        migrations.RunSQL(TAKE_OVER, GIVE_BACK),
        migrations.RemoveField("closerun", "message"),
    ]
