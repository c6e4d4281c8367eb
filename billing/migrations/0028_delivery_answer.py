from django.db import migrations, models

# A finished sentence of until now stays as it is, as a JSON string.
TAKE_OVER = (
    "ALTER TABLE billing_alertdelivery ALTER COLUMN last_answer TYPE jsonb USING to_jsonb(last_answer)"
)
GIVE_BACK = """
ALTER TABLE billing_alertdelivery ALTER COLUMN last_answer TYPE varchar(300)
    USING CASE jsonb_typeof(last_answer) WHEN 'string' THEN last_answer #>> '{}' ELSE '' END
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0027_tenant_months")]

    operations = [
        migrations.RunSQL(
            TAKE_OVER,
            GIVE_BACK,
            state_operations=[
                migrations.AlterField(
                    "alertdelivery",
                    "last_answer",
                    models.JSONField(default=str, help_text="why it was not taken: a sentence, or empty"),
                ),
            ],
        )
    ]
