"""Finds for values that updates did not send the row of the stretch that has them."""

from __future__ import annotations

import numpy as np

from pgoutput_fast.mirror.effect.column_names import RowNumbers

__all__ = ["origins"]


def origins(unsent: RowNumbers, before: RowNumbers) -> RowNumbers:
    """The row in which each row's value of a column stands: the row itself, or an earlier state of the same row.

    If no row of the stretch has the value, it is the earliest state in the stretch: one of `unsent`.

    Args:
        unsent: the rows in which the column's value was not sent.
        before: for each row the one with the state before it, -1 if that is not in the stretch.

    >>> import numpy as np
    >>> origins(np.array([1, 2, 4]), np.array([-1, 0, 1, -1, -1]))
    array([0, 0, 0, 3, 4])
    """
    found = np.arange(len(before))
    earlier = before[unsent]
    found[unsent] = np.where(earlier < 0, unsent, earlier)
    # Each round doubles how far a row looks back, so that a row with very many updates takes few rounds.
    while True:
        further = found[found[unsent]]
        if np.array_equal(further, found[unsent]):
            return found
        found[unsent] = further
