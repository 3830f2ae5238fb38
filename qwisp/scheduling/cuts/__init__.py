"""Rules that choose rows for a stream, one file each, found by name.

A cut is `place(rows, free) -> range | None`. `free` lists the free ranges by start row; `rows` is
what the stream needs. In a space of fixed sessions the answer must be one of `free` as it stands;
in a free space (`per_request`) it is a part of one, exactly `rows` long.
"""
