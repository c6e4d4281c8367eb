"""Database engine that finds or starts the embedded PostgreSQL when a connection is first made.

Commands that touch no database (`--help`, `check`, `makemigrations --check`) therefore start nothing.
"""
