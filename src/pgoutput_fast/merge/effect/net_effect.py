"""The net effect of committed changes of one table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.merge.effect.change_arrays import change_arrays
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.keyed import keyed_effect
from pgoutput_fast.merge.effect.multiset import multiset_effect
from pgoutput_fast.schema.foreign import checked_table

__all__ = ["effect_of", "net_effect"]

# Changes in smaller chunks are joined first: the overhead per chunk and column is that of some hundred rows. Larger
# tables are not joined, because the copy doubles the memory.
_CHUNK_ROWS = 1000
_JOINED_BYTES = 1 << 26


def net_effect(changes: pa.Table, key: Sequence[str]) -> Effect:
    """Reduces committed changes of one table to their net effect: the removed rows, and the new ones.

    Contradictory changes are an error, because they mean that changes are missing. An example is an update of a row
    that an earlier change removed. The rows of the table itself are not read.

    Args:
        changes: rows of the committed view in apply order and in plain types (`schema/plain.py`), with their metadata
            columns. Whole transactions, any number of them.
        key: the columns of the replica identity. Empty for a table whose changes have whole old rows (REPLICA IDENTITY
            FULL), or that only gets new rows (NOTHING).

    Raises:
        TypeError: if `changes` is not a table.
        ValueError: if changes contradict each other, or are incomplete. The error names the message, the table if the
            schema of the changes has its name, and the column if one is concerned. Also if Arrow data are damaged.

    >>> import pyarrow as pa
    >>> import pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    >>> writer = Writer()
    >>> sent = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1", "a"])
    >>> sent += writer.change(orders, "update", new=["1", "b"]) + writer.change(orders, "delete", key=["2", None])
    >>> sent += writer.commit(100, 108, 0)
    >>> decoded = pgo.decode(sent, options=pgo.Options(transactions="committed"))
    >>> effect = net_effect(decoded.table("public.orders"), ["id"])
    >>> effect.gone.to_pylist(), effect.rows.to_pylist()
    ([{'id': 2}], [{'id': 1, 'note': 'b', '_commit_lsn': 100, '_unrepresentable': None}])
    """
    expect_list("key", key)
    if not isinstance(changes, pa.Table):
        raise TypeError(f"changes must be a pyarrow Table, not {type(changes).__name__}")
    return effect_of(checked_table(changes, "the changes"), key)


def effect_of(changes: pa.Table, key: Sequence[str]) -> Effect:
    """The same for changes of this package or of a file reader, whose Arrow data are known to be sound.

    Raises:
        ValueError: as for `net_effect`.
    """
    chunks = max((column.num_chunks for column in changes.columns), default=0)
    if changes.num_rows < _CHUNK_ROWS * chunks and changes.nbytes <= _JOINED_BYTES:
        changes = changes.combine_chunks()
    arrays = change_arrays(changes)
    return keyed_effect(arrays, key) if key else multiset_effect(arrays)
