"""Interning: what events call by name, as ids. Sorted, so that two bookings never wait for each other in a circle."""

INSERT_SOURCES = """
INSERT INTO ledger_source (uri, adapter, config, state)
SELECT uri, 'cloudevents', '{}', '{}' FROM unnest(%(uris)s::text[]) AS new(uri) ORDER BY uri
ON CONFLICT (uri) DO NOTHING
"""
# unique uri
SOURCES = "SELECT uri, id FROM ledger_source WHERE uri = ANY(%(uris)s)"

INSERT_IDENTITIES = """
INSERT INTO ledger_identity (kind, value, first_seen_at)
SELECT kind, value, now() FROM unnest(%(kinds)s::text[], %(values)s::text[]) AS new(kind, value)
ORDER BY kind, value
ON CONFLICT (kind, value) DO NOTHING
"""
# identity_key
IDENTITIES = """
SELECT kind, value, id FROM ledger_identity
JOIN unnest(%(kinds)s::text[], %(values)s::text[]) AS asked(kind, value) USING (kind, value)
"""

INSERT_MODELS = """
INSERT INTO ledger_modelname (name)
SELECT name FROM unnest(%(names)s::text[]) AS new(name) ORDER BY name
ON CONFLICT (name) DO NOTHING
"""
MODELS = "SELECT name, id FROM ledger_modelname WHERE name = ANY(%(names)s)"

# Masters are few: read whole, once a booking.
POOLS = "SELECT slug, id, cluster FROM ledger_pool"
TENANTS = "SELECT slug FROM ledger_holder WHERE kind = 1"
SERVICES = "SELECT slug, id FROM ledger_holder WHERE kind = 2"
