"""The metadata columns of decoded changes: position in the stream, and type of change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list, kind_of

__all__ = [
    "ALTER",
    "CHANGE_TYPES",
    "METADATA_COLUMNS",
    "choose_metadata",
    "metadata_fields",
    "metadata_names",
]

_TIME = pa.timestamp("us", tz="UTC")

# The values of `change_type`. `rows/slice.pxd` of the compiled core has a code for each, in this order.
CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
# The `change_type` of a row in the history of a mirror that no message has: columns were altered.
# `merge/effect/alter.py` reads it.
ALTER = "alter"

# The metadata columns of a change, without the prefix. For another column, also edit these files of `_core/rows/`:
# `metadata.pxd` has the positions, in the same order; `metadata.pyx` fills the columns, or `named_columns.pyx` if they
# name columns; `rows.pyx` puts the columns of both into the batch, and takes their number from `metadata.pxd`.
# A value shared by all rows of a transaction also needs a field of `MessageScope`, and a column of tagged payloads:
# `stream_state.hpp`, `stream_state.pxd`, `stream_tracker.pxd` (`set_scope`, and who calls it) and `tagged.pyx` of
# `_core/tagging/`, `row_blocks.pyx` of `_core/copy/` (rows of a snapshot), and `TAGGED_SCHEMA` in `schema/tables.py`.
# If it is known only at the commit, like `commit_lsn`, it also passes through `outcomes.py`, `release.py` and
# `reorder_buffer_json.py` of `transactions/`, and through `spark/dataframes/outcomes.py`. Spark's tasks name such
# columns in `spark/tasks/changes.py` and `payloads.py`.
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


def choose_metadata(metadata: Literal["all"] | Sequence[str], prefix: str) -> tuple[str, ...]:
    """The names of the requested metadata columns, as they appear in the result.

    Args:
        metadata: `"all"`, or names with or without the prefix. A prefixed name takes precedence over an equal name
            without the prefix.
        prefix: the prefix of the names in the result.

    Returns:
        All names in standard order, or the requested names in the requested order.

    Raises:
        TypeError: for a text other than `"all"`. The error is a ValueError, too.
        KeyError: for an unknown name; the message lists the existing names.
        ValueError: for a duplicate name.

    >>> choose_metadata(["_seq", "lsn"], "_"), choose_metadata((), "_")
    (('_seq', '_lsn'), ())
    """
    if metadata != "all":
        expect_list("metadata", metadata)
        if not isinstance(metadata, Iterable):
            raise TypeError(
                f"metadata must be 'all' or a list of names, not {kind_of(metadata)}; for no metadata columns pass []"
            )
    existing = [field.name for field in _fields(prefix)]
    if metadata == "all":
        return tuple(existing)
    short = dict(zip((name for name, _ in METADATA_COLUMNS), existing, strict=True))
    chosen = [name if name in existing else short.get(name, name) for name in metadata]
    missing = [name for name in chosen if name not in existing]
    if missing:
        raise KeyError(
            f"there is no metadata column {', '.join(map(repr, missing))}; there is {', '.join(existing)}"
        )
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"metadata names a column twice: {', '.join(chosen)}")
    return tuple(chosen)


@lru_cache(maxsize=64)
def metadata_names(prefix: str) -> frozenset[str]:
    """The names of the metadata columns, with `prefix` before them."""
    return frozenset(field.name for field in _fields(prefix))


@lru_cache(maxsize=64)
def _fields(prefix: str) -> tuple[pa.Field, ...]:
    return tuple(pa.field(prefix + name, kind) for name, kind in METADATA_COLUMNS)
