"""Current tables in a database of DuckDB, or in a lake of DuckLake. DuckDB applies effects with SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.commit import is_applied
from pgoutput_fast.merge.current_table import CurrentTable, with_null_columns
from pgoutput_fast.merge.effect.effect import UNREPRESENTABLE, Effect
from pgoutput_fast.merge.effect.fill import Fill, Part
from pgoutput_fast.merge.match import is_plain
from pgoutput_fast.merge.search import Search, rows_to_remove
from pgoutput_fast.protocol.limits import PIECE_BYTES
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.tables.columns import check_names, fitted, in_schema, merged
from pgoutput_fast.tables.duckdb import DuckDBCurrent

__all__ = ["DuckDBMerge"]


class DuckDBMerge(CurrentTable):
    """A current table in a database of DuckDB, or in a lake of DuckLake.

    Args:
        table: the table.
    """

    table: DuckDBCurrent

    def replace(self, rows: Iterable[pa.RecordBatch], schema: pa.Schema, position: int) -> None:
        stored = stored_schema(schema, "current")
        check_names(stored.names, str(self), folded=True)
        with self.table.opened() as connection:
            before = self.table.state_in(connection)
            with self.table.transaction(connection, before, position):
                self.table.make(connection, stored)
                for piece in _pieces(rows):
                    self.table.insert(connection, in_schema(piece, stored))

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        with self.table.opened() as connection:
            now = self.table.state_in(connection)
            return self._find(connection, None if now is None else now.schema, keys, columns)

    def _find(
        self, connection: Any, schema: pa.Schema | None, keys: pa.Table, columns: Sequence[str]
    ) -> pa.Table:
        names = [*keys.schema.names, *columns]
        if schema is None:
            return with_null_columns(keys.slice(0, 0), names)
        keys = in_schema(keys, fitted(schema, keys.schema, str(self), lambda *_: True))
        types = pa.schema([schema.field(name) for name in names if name in schema.names])
        rows = in_schema(self.table.matching(connection, keys, types.names), types)
        return with_null_columns(rows, names)

    def apply_parts(self, parts: Iterable[Part], position: int, after: int | None = None) -> None:
        with self.table.opened() as connection:
            before = self.table.state_in(connection)
            if is_applied(self, None if before is None else before.position, position, after):
                return
            schema = None if before is None else before.schema
            with self.table.transaction(connection, before, position):
                for part in parts:
                    if isinstance(part, Effect):
                        schema = self._apply(connection, part, schema)
                    else:
                        schema = self._fill(connection, part, schema)

    def _apply(self, connection: Any, effect: Effect, before: pa.Schema | None) -> pa.Schema:
        """Applies an effect in a transaction. Returns the new columns of the table."""
        effect = effect.filled_by(lambda keys, columns: self._find(connection, before, keys, columns))
        schema = self._altered(connection, effect.rows.schema, before)
        self._change(connection, effect, schema)
        return schema

    def _fill(self, connection: Any, fill: Fill, before: pa.Schema | None) -> pa.Schema:
        """Renames columns, and sets values in all rows, in a transaction. Returns the new columns of the table."""
        if fill.renamed and before is not None:
            names = fill.names(before.names)
            check_names(names, str(self), folded=True)
            self.table.rename(connection, fill.renamed)
            for name, former in fill.renamed.items():
                self.table.replace_name(connection, UNREPRESENTABLE, former, [name])
            before = pa.schema([field.with_name(name) for field, name in zip(before, names, strict=True)])
            if not len(fill.schema):
                return before
        schema = self._altered(connection, fill.schema, before)
        self.table.fill(connection, fill.in_types(schema).values, fill.sources)
        for name, source in fill.sources.items():
            self.table.replace_name(connection, UNREPRESENTABLE, source, [source, name])
        return schema

    def _altered(self, connection: Any, rows: pa.Schema, before: pa.Schema | None) -> pa.Schema:
        """Gives the table the columns that it needs for rows. Returns all of its columns."""
        types = fitted(before, rows, str(self), lambda *_: True)
        schema = types if before is None else merged(before, types)
        check_names(schema.names, str(self), folded=True)
        if before is None:
            self.table.make(connection, schema)
        else:
            self.table.alter(connection, before, schema)
        return schema

    def _change(self, connection: Any, effect: Effect, schema: pa.Schema) -> None:
        rows = in_schema(effect.rows, schema)
        removed = rows_to_remove(effect, rows)
        if effect.truncated:
            self.table.delete(connection)
        elif effect.key:
            self.table.delete(connection, removed)
        elif removed.num_rows:
            self._delete_copies(connection, removed, schema)
        self.table.insert(connection, rows)

    def _delete_copies(self, connection: Any, removed: pa.Table, schema: pa.Schema) -> None:
        """Deletes one copy of every row of `removed`, without a key.

        DuckDB finds rows by the columns that it compares as this package does; those of them that must stay are
        inserted again.

        Raises:
            ValueError: if one does not exist.
        """
        # Without such columns, all rows match.
        plain = removed.select([field.name for field in removed.schema if is_plain(field.type)])
        rows = in_schema(self.table.matching(connection, plain, schema.names), schema)
        self.table.delete(connection, plain)
        search = Search(removed, keys=False, signed_zeros=self.table.signed_zeros)
        ordinals = search.removed(rows.select(removed.schema.names)).rows
        search.check_complete(str(self))
        self.table.insert(connection, rows.take(pa.array(np.setdiff1d(np.arange(rows.num_rows), ordinals))))


def _pieces(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Merges batches into larger tables."""
    waiting: list[pa.RecordBatch] = []
    for batch in rows:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= PIECE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
