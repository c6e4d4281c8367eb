"""How facts get in: events, adapters, collectors. Imports ledger, never billing."""
