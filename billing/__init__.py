"""What it costs: allocation, rating, statements. Imports ledger, never ingest."""
