"""The rows of a table with the effects of later changes. Nothing is read before the pieces are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.fill import Fill
from pgoutput_fast.merge.match import Finder
from pgoutput_fast.merge.search import Search, rows_to_remove
from pgoutput_fast.tables.columns import fitted, in_schema, merged

__all__ = ["Changed", "Filled", "Renamed", "Rows"]


class Rows(Protocol):
    """Rows of a table.

    Attributes:
        schema: their columns.
    """

    @property
    def schema(self) -> pa.Schema: ...

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, with these columns, in pieces."""


class Changed:
    """Rows after an effect.

    Args:
        below: the rows before it.
        effect: the effect.
        place: names the table, for errors.

    Raises:
        ValueError: if the effect lacks rows, or has types that do not fit.
    """

    def __init__(self, below: Rows, effect: Effect, place: str) -> None:
        effect = effect.filled_by(lambda keys, columns: _found(below, keys, columns, place))
        types = fitted(below.schema, effect.rows.schema, place, lambda *_: True)
        self.schema = merged(below.schema, types)
        self._below, self._effect, self._place = below, effect, place
        self._rows = in_schema(effect.rows, self.schema)

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, with these columns, in pieces.

        Raises:
            ValueError: if a removed row without a key does not exist.
        """
        if not self._effect.truncated:
            yield from self._stay(columns)
        if self._rows.num_rows:
            yield self._rows.select(columns)

    def _stay(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The earlier rows that stay."""
        removed = rows_to_remove(self._effect, self._rows)
        names = removed.schema.names
        if not removed.num_rows:
            yield from _pieces(self._below, columns, self.schema)
            return
        search = Search(removed, keys=bool(self._effect.key))
        for piece in _pieces(self._below, list(dict.fromkeys([*columns, *names])), self.schema):
            stays = np.ones(piece.num_rows, np.bool_)
            stays[search.removed(piece.select(names)).rows] = False
            yield piece.select(columns).filter(pa.array(stays))
        search.check_complete(self._place)


class Renamed:
    """Rows after columns got another name. One that had such a name already is gone.

    Args:
        below: the rows before it.
        fill: the names.
    """

    def __init__(self, below: Rows, fill: Fill) -> None:
        kept = [field for field in below.schema if field.name not in fill.renamed]
        names = fill.names([field.name for field in kept])
        self.schema = pa.schema([field.with_name(name) for field, name in zip(kept, names, strict=True)])
        self._below, self._fill = below, fill

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, with these columns, in pieces."""
        former = [self._fill.renamed.get(name, name) for name in columns]
        for piece in self._below.pieces(former):
            yield self._fill.rename(piece.select(former), self.schema.names)


class Filled:
    """Rows after new columns got values in all of them.

    Args:
        below: the rows before it.
        fill: the values.
        place: names the table, for errors.

    Raises:
        ValueError: if a column has a type that does not fit.
    """

    def __init__(self, below: Rows, fill: Fill, place: str) -> None:
        types = fitted(below.schema, fill.schema, place, lambda *_: True)
        self.schema = merged(below.schema, types)
        self._below, self._fill = below, fill.in_types(types)

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, with these columns, in pieces."""
        fill = self._fill.of(columns)
        sources = [fill.sources[name] for name in fill.copied.column_names]
        needed = list(dict.fromkeys([*columns, *sources]))
        for piece in _pieces(self._below, needed, self.schema):
            yield fill.apply(piece, self.schema.names).select(columns)


def _pieces(rows: Rows, columns: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows with columns of a schema. Missing columns are null."""
    types = pa.schema([schema.field(name) for name in columns])
    known = [name for name in columns if name in rows.schema.names]
    for piece in rows.pieces(known or rows.schema.names[:1]):
        yield in_schema(piece, types)


def _found(rows: Rows, keys: pa.Table, columns: Sequence[str], place: str) -> pa.Table:
    """The rows with these keys: the key columns, and the other columns that exist."""
    keys = in_schema(keys, fitted(rows.schema, keys.schema, place, lambda *_: True))
    names = [name for name in (*keys.schema.names, *columns) if name in rows.schema.names]
    types = pa.schema(
        [keys.schema.field(name) if name in keys.schema.names else rows.schema.field(name) for name in names]
    )
    finder = Finder(keys, keys=True)
    found = [types.empty_table()]
    for piece in rows.pieces(names):
        piece = in_schema(piece, types)
        hits = finder.find(piece.select(keys.schema.names)) >= 0
        if np.any(hits):
            found.append(piece.filter(pa.array(hits)))
    return pa.concat_tables(found)
