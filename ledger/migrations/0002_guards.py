"""What only SQL can say: the partitioned request table, and triggers that keep facts and transfers append-only."""

from django.db import migrations

REQUEST_TABLE = """
CREATE TABLE ledger_request (
    day date NOT NULL,
    source_id bigint NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    content_hash bytea NOT NULL,
    booking_id bigint NOT NULL,
    line integer NOT NULL,
    type smallint NOT NULL,
    starts_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL,
    queued_at timestamptz,
    pool_id bigint NOT NULL,
    identity_id bigint,
    service_id bigint,
    model_id bigint NOT NULL,
    workload text,
    request text NOT NULL,
    attempt integer NOT NULL,
    outcome smallint NOT NULL,
    service_class smallint NOT NULL,
    requests integer NOT NULL,
    input_tokens bigint,
    cached_input_tokens bigint,
    cache_write_tokens bigint,
    output_tokens bigint,
    reasoning_tokens bigint,
    gpu_us bigint,
    prefill_gpu_us bigint,
    concurrency_us bigint,
    preemptions integer,
    recomputed_tokens bigint,
    recompute_gpu_us bigint,
    attributes jsonb,
    PRIMARY KEY (day, source_id, event_id),
    CONSTRAINT request_runs_forward CHECK (ends_at >= starts_at),
    CONSTRAINT request_cached_is_part_of_input
        CHECK (coalesce(cached_input_tokens, 0) + coalesce(cache_write_tokens, 0) <= input_tokens),
    CONSTRAINT request_reasoning_is_part_of_output CHECK (reasoning_tokens <= output_tokens),
    CONSTRAINT request_not_negative CHECK (
        least(input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, gpu_us,
              prefill_gpu_us, concurrency_us, preemptions, recomputed_tokens, recompute_gpu_us) >= 0)
) PARTITION BY RANGE (day);
-- Voided requests of one workload: the few rows that `lost` is read from (domain.md section 6).
CREATE INDEX request_voided ON ledger_request (workload, ends_at) WHERE outcome = 5;
"""

GUARD = """
CREATE FUNCTION ledger_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'Post a correction or an adjustment instead.';
END $$;
"""

APPEND_ONLY = [
    "ledger_event",
    "ledger_level",
    "ledger_preemptionreport",
    "ledger_resumereport",
    "ledger_rejection",
    "ledger_quotalevel",
    "ledger_correction",
    "ledger_request",
    "ledger_transfer",
]


def guard(table: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION ledger_refuse_change()",
        f"DROP TRIGGER append_only ON {table}",
    )


class Migration(migrations.Migration):
    dependencies = [("ledger", "0001_initial")]

    operations = [
        migrations.RunSQL(REQUEST_TABLE, "DROP TABLE ledger_request"),
        migrations.RunSQL(GUARD, "DROP FUNCTION ledger_refuse_change()"),
        *[guard(table) for table in APPEND_ONLY],
    ]
