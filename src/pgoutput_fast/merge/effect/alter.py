"""Rows of `alter` in a history: columns that were altered, and the values that earlier rows have in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.schema.metadata_columns import ALTER, metadata_names

__all__ = ["Altered", "altered", "alters", "without_marks"]


class Altered(NamedTuple):
    """What a row of `alter` does to earlier rows.

    Attributes:
        filled: the columns in which all of them get the value of the row.
        sources: {column: the column whose values they get in it}, of renamed columns.
    """

    filled: list[str]
    sources: dict[str, str]


def altered(row: pa.Table) -> Altered:
    """What a row does. Its `_unchanged` has the name before and the name now of each altered column."""
    names = [name for name in row.column_names if name not in metadata_names("_")]
    said = row["_unchanged"][0].as_py() or []
    pairs = zip(said[::2], said[1::2], strict=True)
    sources = {new: old for old, new in pairs if new in names and old not in ("", new)}
    return Altered([name for name in names if row[name].null_count == 0], sources)


def alters(changes: pa.Table) -> list[int]:
    """The rows of `alter` among changes."""
    found = pc.fill_null(pc.equal(changes["_change_type"], ALTER), False)
    return np.flatnonzero(found.to_numpy()).tolist()


def without_marks(changes: pa.Table) -> pa.Table:
    """Changes without those rows of `alter` that give earlier rows no values."""
    marks = [at for at in alters(changes) if not any(altered(changes.slice(at, 1)))]
    return changes.take(np.delete(np.arange(changes.num_rows), marks)) if marks else changes
