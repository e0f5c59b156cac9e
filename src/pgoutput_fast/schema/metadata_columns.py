"""The metadata columns that every decoded change has: where it lies in the stream, and what happened to its row."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

__all__ = ["CHANGE_TYPES", "METADATA_COLUMNS", "metadata_fields", "metadata_names"]

_TIME = pa.timestamp("us", tz="UTC")

# The values of `change_type`. `rows/slice.pxd` of the compiled core has a code for each, in this order.
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")

# The metadata columns of a change, without the prefix. For another column, also edit these files of `_core/rows/`:
# `metadata.pxd` has the positions, in the same order; `metadata.pyx` fills the columns, or `named_columns.pyx` if they
# name columns; `rows.pyx` puts the columns of both into the batch, and takes their number from `metadata.pxd`.
#
# A value that all rows of a transaction share also needs a field of `MessageScope`, and a column of tagged payloads:
# `stream_state.hpp`, `stream_state.pxd`, `stream_tracker.pxd` (`set_scope`, and who calls it) and `tagged.pyx` of
# `_core/tagging/`, `row_blocks.pyx` of `_core/copy/` (rows of a snapshot), and `TAGGED_SCHEMA` in `schema/tables.py`.
METADATA_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("change_type", pa.string()),
    ("seq", pa.int64()),
    ("lsn", pa.int64()),
    ("txn", pa.int64()),
    ("xid", pa.int64()),
    ("subxid", pa.int64()),
    ("commit_lsn", pa.int64()),
    ("commit_timestamp", _TIME),
    ("key_only", pa.bool_()),
    ("unchanged", pa.list_(pa.string())),
    ("unrepresentable", pa.list_(pa.string())),
)


def metadata_fields(prefix: str) -> list[pa.Field]:
    """The fields of the metadata columns, with `prefix` before their names."""
    return list(_fields(prefix))


@lru_cache(maxsize=64)
def metadata_names(prefix: str) -> frozenset[str]:
    """The names of the metadata columns, with `prefix` before them."""
    return frozenset(field.name for field in _fields(prefix))


@lru_cache(maxsize=64)
def _fields(prefix: str) -> tuple[pa.Field, ...]:
    return tuple(pa.field(prefix + name, kind) for name, kind in METADATA_COLUMNS)
