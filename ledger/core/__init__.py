"""What the record means, in plain Python: units, exact sharing, months and slots, levels, transfers.

Nothing here knows of a database, a clock or settings: integers and arrays in, integers and arrays out. Sections are
those of domain.md.

Read in this order, and half of the accounting is known (billing.core has the other half):

1. `units`: GPU-microseconds, milli-GPUs, micro units of a currency; the only places where decimals become integers.
2. `periods`: months by the billing zone, slots of an hour, days; 23- and 25-hour days (section 2).
3. `apportion`: dividing an integer so that the parts are the whole (section 2).
4. `levels`: from facts to who held what and when (section 3); `corrections`: which facts no longer count.
5. `transfers`: what has to be posted so that the books say what the facts say (section 10).

How things are told and shown: `sentences` and `record_sentences` (codes with values, put into words for a reader),
`figures` (numbers for the eye), `instants`, `currency`, `windows` (the `window` of a question), `contract_words`.
Files: `csv_cells`, `csv_stream`, `zstd`. Rules of the doors: `lockout`, `silence`.
"""
