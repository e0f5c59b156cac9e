"""Committed changes of one table as arrays, checked for errors that no server makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.identifiers import quote_qualified_name
from pgoutput_fast.merge.effect.alter import without_marks
from pgoutput_fast.merge.effect.column_names import RowNumbers, naming_rows
from pgoutput_fast.schema.metadata_columns import ALTER, CHANGE_TYPES, metadata_names

__all__ = ["ChangeArrays", "Mask", "change_arrays", "needed_columns"]

Mask: TypeAlias = npt.NDArray[np.bool_]

_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(len(CHANGE_TYPES))
_PREFIX = "_"
_NEEDED = ("change_type", "seq", "commit_lsn", "key_only", "unchanged", "unrepresentable")


@dataclass(frozen=True)
class ChangeArrays:
    """The changes after the last truncate, or all, in apply order. Rows are identified by their numbers, from 0.

    Attributes:
        table: the table's qualified name, None if the changes lack it.
        truncated: whether a truncate preceded these changes.
        values: the relation's columns.
        kinds: the change types of the rows, as indexes of `CHANGE_TYPES`.
        seq: `_seq` of the rows.
        commit_lsn: `_commit_lsn` of the rows, int64.
        key_only: the rows with key columns only.
        unchanged: {column: rows in which its value was not sent}, in the order of the columns.
        unrepresentable: {column: rows in which its value has no Arrow form}, in the order of the columns.
    """

    table: str | None
    truncated: bool
    values: pa.Table
    kinds: npt.NDArray[np.int32]
    seq: npt.NDArray[np.int64]
    commit_lsn: pa.ChunkedArray
    key_only: Mask
    unchanged: Mapping[str, RowNumbers]
    unrepresentable: Mapping[str, RowNumbers]

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def puts(self) -> Mask:
        """The rows that are the state after a change."""
        found: Mask = (self.kinds == _INSERT) | (self.kinds == _POSTIMAGE)
        return found

    @cached_property
    def has_preimage(self) -> Mask:
        """The rows directly after the old row of their update."""
        found = np.zeros(len(self), np.bool_)
        found[1:] = self.kinds[:-1] == _PREIMAGE
        return found

    @cached_property
    def updates_in_place(self) -> Mask:
        """The updates without an old row: the key is unchanged."""
        found: Mask = (self.kinds == _POSTIMAGE) & ~self.has_preimage
        return found

    def problem(self, row: int, reason: str, column: str | None = None) -> ValueError:
        """The error about a row, without values."""
        return _problem(self.table, int(self.seq[row]), reason, column)


def _problem(table: str | None, seq: int, reason: str, column: str | None = None) -> ValueError:
    place = [f"message {seq}"]
    if table is not None:
        place.append(f"relation {table}")
    if column is not None:
        place.append(f"column {column!r}")
    return ValueError(f"{', '.join(place)}: {reason}")


def needed_columns(changes: pa.Table) -> pa.Table:
    """Changes without the metadata columns that no effect depends on."""
    others = metadata_names(_PREFIX) - {_PREFIX + name for name in _NEEDED}
    return changes.select([name for name in changes.column_names if name not in others])


def change_arrays(changes: pa.Table) -> ChangeArrays:
    """The changes as arrays.

    Args:
        changes: rows of the committed view in plain types, in apply order, with their metadata columns.

    Raises:
        ValueError: if a metadata column is missing, or rows cannot have come from a server.
    """
    missing = [_PREFIX + name for name in _NEEDED if _PREFIX + name not in changes.column_names]
    if missing:
        raise ValueError(f"the changes lack the metadata columns {', '.join(missing)}")
    changes = without_marks(changes)
    table = _table_of(changes.schema)
    seq = _numbers(changes, "seq", table)
    kinds = _kinds(changes, seq, table)
    _check_pairs(kinds, seq, table)
    truncates = np.flatnonzero(kinds == _TRUNCATE)
    begin = int(truncates[-1]) + 1 if len(truncates) else 0
    changes = changes.slice(begin)
    _numbers(changes, "commit_lsn", table)
    values = changes.select([name for name in changes.column_names if name not in metadata_names(_PREFIX)])
    arrays = ChangeArrays(
        table=table,
        truncated=len(truncates) > 0,
        values=values,
        kinds=kinds[begin:],
        seq=seq[begin:],
        commit_lsn=changes[_PREFIX + "commit_lsn"],
        key_only=pc.fill_null(changes[_PREFIX + "key_only"], False).to_numpy(),
        unchanged=_naming_rows(changes, "unchanged", values.column_names),
        unrepresentable=_naming_rows(changes, "unrepresentable", values.column_names),
    )
    for column, rows in arrays.unchanged.items():
        inserted = rows[arrays.kinds[rows] == _INSERT]
        if len(inserted):
            reason = (
                "the server sent a new row without this value. A row filter of the publication does so if an update "
                "makes a row match that did not match before. With REPLICA IDENTITY FULL the server sends the value"
            )
            raise arrays.problem(inserted[0], reason, column)
    return arrays


def _table_of(schema: pa.Schema) -> str | None:
    said = schema.metadata or {}
    if b"pg.relation" not in said or b"pg.namespace" not in said:
        return None
    return quote_qualified_name(said[b"pg.namespace"].decode(), said[b"pg.relation"].decode())


def _numbers(changes: pa.Table, name: str, table: str | None) -> npt.NDArray[np.int64]:
    column = changes[_PREFIX + name]
    if column.null_count:
        of = "" if table is None else f" of {table}"
        raise ValueError(f"changes{of} have no {_PREFIX}{name}: they are not rows of the committed view")
    numbers: npt.NDArray[np.int64] = column.to_numpy()
    return numbers


def _kinds(changes: pa.Table, seq: npt.NDArray[np.int64], table: str | None) -> npt.NDArray[np.int32]:
    found = pc.index_in(changes[_PREFIX + "change_type"], pa.array(CHANGE_TYPES))
    if found.null_count:
        row = pc.index(found.is_null(), True).as_py()
        if changes[_PREFIX + "change_type"][row].as_py() == ALTER:
            why = (
                "columns were added or renamed here: pass the changes before and after this row separately, and set "
                "the new columns in all rows in between"
            )
            raise _problem(table, int(seq[row]), why)
        raise _problem(table, int(seq[row]), "unknown change type")
    kinds: npt.NDArray[np.int32] = found.to_numpy()
    return kinds


def _naming_rows(changes: pa.Table, name: str, columns: Sequence[str]) -> dict[str, RowNumbers]:
    """The rows that name the `columns`. Names of other columns do not matter."""
    found = naming_rows(changes[_PREFIX + name])
    return {column: found[column] for column in columns if column in found}


def _check_pairs(kinds: npt.NDArray[np.int32], seq: npt.NDArray[np.int64], table: str | None) -> None:
    alone = kinds == _PREIMAGE
    if not alone.any():
        return
    alone[:-1] &= (kinds[1:] != _POSTIMAGE) | (seq[1:] != seq[:-1])
    if alone.any():
        row = int(np.argmax(alone))
        raise _problem(table, int(seq[row]), "the old row of an update has no new row right after it")
