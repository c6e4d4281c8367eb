"""Files for other programs: rows here, bytes in `stream`. Columns are fixed by interfaces.md, "CSV bills"."""
