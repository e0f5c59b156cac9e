"""Brings ranges of a table that were read in several snapshots to one position.

A load that was interrupted has ranges of pages read in an earlier snapshot, and reads the others in a new one. The
history has all changes since the slot began, so all since the earliest of these snapshots, whose LSN is `begin`. Let
`through` be any LSN that all snapshots have reached.

- A row whose key no change after `begin` names is the same at all these LSNs, and lies in the same page: only an update
  moves a row, or a statement that gives the table other files, and then all ranges are read again (`ranges.py`). So
  exactly one range has it.
- A row whose key a change names may be in no range, in one or in several, in any of its states: an update may have
  moved it between pages of ranges that were read at different times. All of these copies are removed. The last change
  of the key says what it is at `through`: nothing after a DELETE, or after an UPDATE that took the key away; else the
  new row.
- An UPDATE does not send values that it left as they were and that are stored outside of the row (TOAST). Those rows
  are read from the server by their keys, in the newest snapshot. They are as of its LSN, not as of `through`, so the
  changes are applied in two steps: those before that snapshot, and then those after it, which are as for any table.
- TRUNCATE gives the table another file.

A table without a key is read in one snapshot. The rows and changes are put together in a table of its own, which nobody
reads, because they may be larger than the memory. Rows that are read by their keys wait in a file for the same reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.current_table import CurrentTable
from pgoutput_fast.merge.effect.column_names import RowNumbers
from pgoutput_fast.merge.effect.effect import Effect, current_schema
from pgoutput_fast.merge.effect.net_effect import effect_of
from pgoutput_fast.merge.match import Finder
from pgoutput_fast.mirror.follow.history import AppendTable
from pgoutput_fast.mirror.view.changes import Changes
from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.storage.temporary_rows import TemporaryRows
from pgoutput_fast.tables.columns import in_schema

__all__ = ["apply_changes"]


def apply_changes(
    table: CurrentTable,
    base: Iterator[pa.Table],
    history: AppendTable,
    key: tuple[str, ...],
    columns: pa.Schema,
    positions: tuple[int, int, int],
    read: Callable[[pa.Table], pa.Table],
    release: Callable[[], object] | Literal[False] = False,
    directory: str | os.PathLike[str] | None = None,
) -> None:
    """Gives a table the rows of all ranges, as of one position.

    Args:
        table: the table. It need not exist.
        base: the rows of all ranges, with the columns of a current table.
        history: has all changes of the table.
        key: its key; not empty.
        columns: of the relation.
        positions: all ranges have the commits up to the first LSN; none has commits after the second one, that of the
            newest snapshot; the result has the commits up to the third one.
        read: reads the rows with some keys in the newest snapshot.
        release: called when the snapshot is not needed any more.
        directory: for a file of rows; None for that of temporary files.

    Raises:
        ValueError: if the changes do not fit, such as after a change of the key. Then read all ranges again.
    """
    begin, snapshot, through = positions
    schema, has_changes = current_schema(columns), history.position() is not None
    with closing(TemporaryRows(directory)) as found:
        whole = _Whole(history.between(begin, snapshot), key, columns, read, found) if has_changes else None
        if release:
            release()
        table.replace(
            (batch for rows in base for batch in rows.select(schema.names).to_batches()), schema, begin
        )
        if whole is not None:
            table.apply_parts(whole, snapshot)
    if has_changes and through > snapshot:
        table.apply_parts(_Effects(history.between(snapshot, through), key, columns), through)


class _Effects:
    """The effects of changes, part by part. They may be iterated again."""

    def __init__(self, changes: Changes, key: tuple[str, ...], columns: pa.Schema) -> None:
        self._changes, self._key = changes, key
        names = {*metadata_names("_"), *columns.names}
        # The history may have columns that were dropped.
        self._names = [name for name in changes.schema.names if name in names]

    def __iter__(self) -> Iterator[Effect]:
        return (effect_of(rows, self._key) for rows in self._parts())

    def _parts(self) -> Iterator[pa.Table]:
        for rows in self._changes.read_parts(self._names):
            # Rows of a load that was killed before the mirror knew of it have no ordinal.
            if (sent := rows.filter(pc.greater_equal(rows["_seq"], 0))).num_rows:
                yield sent


class _Whole(_Effects):
    """The same for a table that may have, or lack, any of the rows that the changes name.

    Args:
        read: reads the rows with some keys as of the position after all changes. It is called at once, and not by an
            iteration.
        found: keeps these rows. The iterations read those of one part at a time.

    Raises:
        ValueError: if the changes do not fit.
    """

    def __init__(
        self,
        changes: Changes,
        key: tuple[str, ...],
        columns: pa.Schema,
        read: Callable[[pa.Table], pa.Table],
        found: TemporaryRows,
    ) -> None:
        super().__init__(changes, key, columns)
        # The rows of each part that lacks any: their offset, and their columns.
        self._file, self._found = found, list[tuple[int, pa.Schema]]()
        for effect in super().__iter__():
            if effect.truncated:
                raise ValueError("the table was truncated during its load")
            if effect.unfilled:
                rows = read(effect.rows.take(pa.array(_lacking(effect))).select(key))
                self._found.append((found.write(rows.schema, rows.to_batches()), rows.schema))

    def __iter__(self) -> Iterator[Effect]:
        found = iter(self._found)
        for rows in self._parts():
            effect = effect_of(rows, self._key)
            if effect.unfilled:
                place, schema = next(found)
                effect = _with_rows(effect, pa.Table.from_batches(self._file.read(place), schema))
            yield replace(effect, gone=_without(_keys_of(rows, self._key), effect.rows.select(self._key)))


def _lacking(effect: Effect) -> RowNumbers:
    """The rows with values that no change has."""
    return np.unique(np.concatenate([each.rows.to_numpy() for each in effect.unfilled]))


def _with_rows(effect: Effect, found: pa.Table) -> Effect:
    """The effect with the server's rows in place of those that lack values.

    A row that a later part removes is not on the server any more. Its later versions are in later parts.
    """
    kept = np.delete(np.arange(effect.rows.num_rows), _lacking(effect))
    schema = effect.rows.schema
    rows = [effect.rows.take(pa.array(kept)), in_schema(found.select(schema.names), schema)]
    return replace(effect, rows=pa.concat_tables(rows), unfilled=())


def _keys_of(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """All keys that changes name, with duplicates."""
    keys = rows.select(key)
    # A key column that an update left as it was is in its old row.
    for name in key:
        keys = keys.filter(pc.is_valid(keys[name]))
    return keys


def _without(keys: pa.Table, others: pa.Table) -> pa.Table:
    """The distinct keys that are not among others."""
    finder = Finder(keys, keys=True)
    codes, first = np.unique(finder.codes, return_index=True)
    is_other = np.isin(codes, finder.find(in_schema(others, keys.schema)))
    return keys.take(pa.array(np.sort(first[~is_other])))
