"""Celery tasks of billing: translate a message into one service call."""
