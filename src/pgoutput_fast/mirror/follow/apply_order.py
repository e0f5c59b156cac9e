"""The order in which changes are applied."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ORDER", "in_order"]

#: The columns that give the order.
ORDER = ("_commit_lsn", "_seq", "_change_type")
_REMOVED_FIRST = ("update_preimage", "delete")


def in_order(changes: pa.Table) -> pa.Table:
    """Sorts changes into the order of application: by commit, and within a transaction by message.

    The two rows of an update have the same ordinal. The old row comes first.

    Args:
        changes: with the columns `ORDER`.

    >>> kinds = ["update_postimage", "insert", "update_preimage"]
    >>> changes = pa.table({"_commit_lsn": [200, 100, 200], "_seq": [5, 7, 5], "_change_type": kinds})
    >>> in_order(changes)["_change_type"].to_pylist()
    ['insert', 'update_preimage', 'update_postimage']
    """
    commits, seqs, kinds = (changes[name] for name in ORDER)
    is_added = pc.invert(pc.is_in(kinds, pa.array(_REMOVED_FIRST)))
    order = np.lexsort([each.to_numpy() for each in (is_added, seqs, commits)])
    return changes.take(pa.array(order))
