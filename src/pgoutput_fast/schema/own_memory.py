"""Copies slices of tables, so that they do not keep the original memory alive."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["in_own_memory"]


def in_own_memory(rows: pa.Table) -> pa.Table:
    """The rows in one chunk and in memory of their own; dictionaries and the data of string views stay shared.

    `take` would copy, too, but row by row, which takes three times as long.

    >>> import pyarrow as pa
    >>> few = pa.table({"id": range(1000)}).slice(10, 2)
    >>> few.get_total_buffer_size(), in_own_memory(few).get_total_buffer_size()
    (8000, 16)
    """
    # Arrow copies a table with several chunks.
    return pa.concat_tables([rows.slice(0, 1), rows.slice(1)]).combine_chunks()
