"""Finds the rows of changes that have values which updates did not send."""

from __future__ import annotations

import numpy as np

from pgoutput_fast.merge.effect.column_names import RowNumbers

__all__ = ["origins"]


def origins(unsent: RowNumbers, before: RowNumbers) -> RowNumbers:
    """The rows with the values of a column: the row itself, or an earlier state of the same row.

    If no row of the changes has the value, it is the earliest state in the changes: one of `unsent`.

    Args:
        unsent: the rows in which the column's value was not sent.
        before: the rows with the previous states, -1 if they are not in the changes.

    >>> import numpy as np
    >>> origins(np.array([1, 2, 4]), np.array([-1, 0, 1, -1, -1]))
    array([0, 0, 0, 3, 4])
    """
    found = np.arange(len(before))
    earlier = before[unsent]
    found[unsent] = np.where(earlier < 0, unsent, earlier)
    # Every round doubles the distance, so many updates of a row take few rounds.
    while True:
        further = found[found[unsent]]
        if np.array_equal(further, found[unsent]):
            return found
        found[unsent] = further
