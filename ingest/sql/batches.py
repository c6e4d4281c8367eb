"""Batches and the end of a booking."""

# A body of 64 MiB travels as it is (`%b`), not as text. The same key from the same sender is kept once (batch_once).
KEEP = """
INSERT INTO ingest_batch (
    received_at, door, submitted_by, content_type, content_encoding, adapter, origin, first_line,
    allowed_sources, idempotency_key,
    body_sha256, body, body_bytes, state, refusal, attempts)
VALUES (now(), %(door)s, %(submitted_by)s, %(content_type)s, %(encoding)s, 'cloudevents', %(origin)s, %(first_line)s,
        %(allowed)s::jsonb, %(key)s, %(sha256)s, %(body)b, %(body_bytes)s, 'received', '', 0)
ON CONFLICT (submitted_by, idempotency_key) DO NOTHING
RETURNING id
"""

# EXTERNAL storage (a migration sees to it) makes this read only the piece.
BODY_PIECE = "SELECT substring(body FROM %(start)s FOR %(length)s) FROM ingest_batch WHERE id = %(batch)s"

# Batches that nobody seems to be booking: not asked for in the last while, and not locked by a worker (batch_waiting).
LEFT_BEHIND = """
UPDATE ingest_batch SET taken_at = now() WHERE id IN (
    SELECT id FROM ingest_batch
    WHERE state = 'received' AND coalesce(taken_at, received_at) < now() - %(patience)s
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) RETURNING id
"""

# A failed booking is counted outside of it, so that one poisoned batch cannot occupy the workers for ever.
COUNT_FAILURE = """
UPDATE ingest_batch SET attempts = attempts + 1, refusal = %(refusal)s,
    state = CASE WHEN attempts + 1 >= %(limit)s THEN 'refused' ELSE state END
WHERE id = %(batch)s AND state = 'received'
"""

# Under Lock.BOOKING_SEQUENCE, so that numbers grow in the order in which bookings commit (unique sequence).
GIVE_SEQUENCE = """
UPDATE ledger_booking
SET sequence = (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_booking), booked_at = clock_timestamp()
WHERE id = %(booking)s
"""

# Never backwards; sorted, so that bookings queue up and never deadlock (primary key).
MOVE_WATERMARKS = """
WITH locked AS (
    SELECT source.id, latest.instant
    FROM ledger_source source
    JOIN unnest(%(sources)s::bigint[], %(instants)s::timestamptz[]) AS latest(id, instant) USING (id)
    ORDER BY source.id FOR UPDATE OF source
)
UPDATE ledger_source source SET watermark_at = greatest(source.watermark_at, locked.instant)
FROM locked WHERE locked.id = source.id
"""
