"""How facts get in, in plain Python: bytes to typed events or to the reason why not (events.md).

An ordinary event passes `unpack` (a body to single events), `parse` (one event, with `events` for its type, `fields`
for its values, `reasons` for why it is refused, `details` and `native_details` for that in the reader's language,
`instants` for when what was refused speaks of) and `fact_rows` (the row that it becomes).

Requests come by the million and take a fast way to the same result: `body` and `json_array` cut, `request_lines` reads
a chunk of lines at once (`line_shapes`, `request_structs` where lines have too many shapes), over `spans`, `columns`
and `ragged` (bytes as arrays); `request_content` and `request_hashes` say what makes a repeat; `request_rows`,
`binary_rows` and `hour_sums` are what is written. `gpu_time` divides a shared batch's GPU time over its requests,
`residual` is what no request explains. `adapters` turn the records of real systems into events; `demo` tells the events
of a month that never was.
"""
