"""Celery tasks of ingest: translate a message into one service call."""
