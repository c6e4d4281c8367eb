"""Pages that need nothing but the record, and what every page is made of."""
