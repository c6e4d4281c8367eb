"""Plain Python: what it costs."""
