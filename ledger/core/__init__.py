"""What the record means, in plain Python: units, exact sharing, months and slots, levels, transfers.

Nothing here knows of a database, a clock or settings: integers and arrays in, integers and arrays out.
"""
