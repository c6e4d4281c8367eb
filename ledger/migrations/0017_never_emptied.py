"""TRUNCATE passes by the triggers of rows: every guarded table refuses it by a trigger of its own."""

from django.db import migrations

# Only the run of the tests, which empty their tables between them, says `ledger.emptied_by_tests`.
GUARD = """
CREATE FUNCTION ledger_refuse_emptying() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('ledger.emptied_by_tests', true) IS DISTINCT FROM 'yes' THEN
        RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
            USING ERRCODE = 'restrict_violation',
                  HINT = 'Post a correction or an adjustment instead.';
    END IF;
    RETURN NULL;
END $$;
"""

# Every table of which a trigger refuses some change of rows, those of the partitions among them. A migration that
# makes such a table calls it again.
GUARD_ALL = r"""
CREATE PROCEDURE ledger_guard_against_emptying() LANGUAGE plpgsql AS $$
DECLARE guarded regclass;
BEGIN
    FOR guarded IN
        SELECT DISTINCT one.tgrelid FROM pg_trigger one JOIN pg_proc refusal ON refusal.oid = one.tgfoid
        WHERE refusal.proname ~ '^(ledger|billing)_refuse_'
          AND NOT EXISTS (SELECT 1 FROM pg_trigger own WHERE own.tgrelid = one.tgrelid AND own.tgname = 'never_emptied')
    LOOP
        EXECUTE format(
            'CREATE TRIGGER never_emptied BEFORE TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_emptying()', guarded);
    END LOOP;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("ledger", "0016_registered_sources")]

    operations = [
        migrations.RunSQL(GUARD, "DROP FUNCTION ledger_refuse_emptying() CASCADE"),
        migrations.RunSQL(GUARD_ALL, "DROP PROCEDURE ledger_guard_against_emptying()"),
        migrations.RunSQL("CALL ledger_guard_against_emptying()", migrations.RunSQL.noop),
    ]
