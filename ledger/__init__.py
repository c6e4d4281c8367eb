"""The record: who exists, what happened, what was posted. Imports neither billing nor ingest."""
