"""Columns that got another name in place: the columns that a table has before and after each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

__all__ = ["Rename", "absent", "all_names", "begins"]


class Rename(NamedTuple):
    """A column that got another name in place, or a new column with a name that such a column had before.

    Attributes:
        lsn, ordinal: the LSN of the commit, and the ordinal, of the first change with the name.
        former: the name before; empty for a new column.
        name: the name now.
    """

    lsn: int
    ordinal: int
    former: str
    name: str


def all_names(renames: Iterable[Rename]) -> set[str]:
    """All names that the columns have, or had."""
    return {name for each in renames for name in (each.former, each.name) if name}


def absent(renames: Sequence[Rename], lsn: int, ordinal: int) -> set[str]:
    """The names of columns that a table does not have at a change, because they come later, or have another name now.

    >>> renames = [Rename(20, 0, "b", "c"), Rename(30, 0, "", "b")]
    >>> absent(renames, 10, 0), absent(renames, 20, 0), absent(renames, 30, 0)
    ({'c'}, {'b'}, set())
    """
    found = set()
    for name in all_names(renames):
        known = [each for each in renames if name in (each.former, each.name)]
        earlier = [each for each in known if (each.lsn, each.ordinal) <= (lsn, ordinal)]
        if earlier[-1].name != name if earlier else known[0].name == name:
            found.add(name)
    return found


def begins(renames: Iterable[Rename], changes: pa.Table) -> list[int]:
    """The rows of changes, which are in order, at which the table gets other columns."""
    commits, ordinals = (changes[name].to_numpy() for name in ("_commit_lsn", "_seq"))
    found = []
    for each in renames:
        later = (commits > each.lsn) | ((commits == each.lsn) & (ordinals >= each.ordinal))
        found += np.flatnonzero(later)[:1].tolist()
    return found
