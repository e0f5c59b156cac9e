"""All tables of a mirror at one position, as datasets of pyarrow: query engines read the columns that they need."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.points import lsn_of, points
from pgoutput_fast.mirror.view.moment import Moment, Position, open_moment
from pgoutput_fast.mirror.view.read import batches_of, rows_of
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions

__all__ = ["TableDataset", "TablesAt"]


class TablesAt:
    """The tables of a mirror at one position. The mirror may run meanwhile.

    Args:
        target: of the mirror: a path or a URI.
        position: as for `fresh`, but `"latest"` is the newest position of all tables together.
        options: how to reach the tables.

    Raises:
        LookupError: if the target has no mirror, or if its first load is not complete.
        ValueError, TypeError: if `position` is not a position; ValueError also if the reader needs a catalog, or if a
            file of the mirror is damaged.

    Attributes:
        names: the qualified names of the tables, sorted, quoted as in SQL.
        position: an LSN, or the time that was given.
    """

    def __init__(self, target: str | os.PathLike[str], position: Position, options: TableOptions) -> None:
        state = MirrorState(open_store(target))
        state.begun(options)
        self._target, self._options = target, options
        self.names = sorted(each.table for each in state.tables().values())
        self.position: int | datetime
        if position == "latest":
            self.position = _common_position(target, state)
        else:
            self.position = position if isinstance(position, datetime) else lsn_of(position)

    def open(self, name: str) -> TableDataset:
        """Opens one of the tables.

        Raises:
            LookupError, MirrorError: as for `fresh`.
        """
        return TableDataset(open_moment(self._target, name, self.position, self._options))


def _common_position(target: str | os.PathLike[str], state: MirrorState) -> int:
    """The newest LSN up to which the history of every table has all commits."""
    lsn = state.history_lsn()
    if lsn is not None:
        return lsn
    known = points(target)
    if not known:
        raise LookupError(
            f"{target} has no table that is complete: run the mirror until its first load is complete"
        )
    return known[-1].position


class TableDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A mirrored table at one position. It can be scanned several times, and gives the same rows each time.

    Engines that take a dataset, such as DuckDB, call `schema` and `scanner` alone.

    Args:
        moment: the table.

    Attributes:
        problem: why a scan failed; None if none did. Engines report only its text.
    """

    def __init__(self, moment: Moment) -> None:
        # Not that of the base class, which makes datasets of files.
        self._rows = rows_of(moment, moment.schema.names)
        self.problem: Exception | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._rows.schema.remove_metadata()

    def scanner(
        self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None, **_: Any
    ) -> ds.Scanner:
        """A scan of the rows.

        Args:
            columns: the columns of the result; None for all.
            filter: which rows it has; None for all.
        """
        columns = list(self.schema.names if columns is None else columns)
        read = columns if filter is None else [*columns, *self._filtered(filter, columns)]
        schema = pa.schema([self.schema.field(name) for name in read])
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema))
        return ds.Scanner.from_batches(reader, columns=columns, filter=filter)

    def _filtered(self, filter: ds.Expression, columns: Sequence[str]) -> list[str]:
        """The other columns that a filter needs: those without which it cannot be bound to the table."""
        empty = self.schema.empty_table()
        needed = []
        for name in empty.column_names:
            if name in columns:
                continue
            try:
                empty.drop_columns([name]).filter(filter)
            except pa.ArrowInvalid:
                needed.append(name)
        return needed

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches_of(self._rows, schema)
        except Exception as problem:
            self.problem = problem
            raise
