"""Pages of what comes in: overview and batches, sources, quarantine, identities."""
