"""Several effects in one commit: each changes the files that the one before left, which readers do not see.

So the effects of a transaction larger than the memory are computed part by part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.tables.columns import names_in
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.table import DataFile, MarkedRows, Version

__all__ = ["Staged"]


@dataclass(frozen=True)
class Staged:
    """The next version of a table, before it is committed.

    Attributes:
        before: the current version; None if there is no table.
        schema: the next columns; None if there is no table, and no effect yet.
        added: the new files.
        removed: the names of the files of `before` that are removed; None for all.
        deleted: {name of another file of `before`: the positions of the rows that are marked deleted}.
    """

    before: Version | None
    schema: pa.Schema | None = None
    added: Sequence[WrittenFile] = ()
    removed: frozenset[str] | None = frozenset()
    deleted: Mapping[str, Numbers] = field(default_factory=dict)

    def after(
        self,
        schema: pa.Schema,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
        deleted: Mapping[str, Numbers],
    ) -> tuple[Staged, list[WrittenFile]]:
        """(this after one more effect, the files of earlier effects that are no longer needed).

        Args:
            schema: the columns after the effect.
            added: its new files.
            removed: the names of the files that it removes; None for all.
            deleted: {name of a file: the positions of the rows that it marks}.
        """
        stay = [] if removed is None else [each for each in self.added if each.name not in removed]
        gone = [each for each in self.added if each not in stay]
        whole = None if removed is None or self.removed is None else self.removed | frozenset(removed)
        if whole is not None and self.before is not None:
            whole &= {each.name for each in self.before.files}
        marked = {**self.deleted, **deleted}
        for name in self.deleted.keys() & deleted.keys():
            marked[name] = np.sort(np.concatenate([self.deleted[name], deleted[name]]))
        left = {name: rows for name, rows in marked.items() if whole is not None and name not in whole}
        return replace(self, schema=schema, added=[*stay, *added], removed=whole, deleted=left), gone

    @property
    def new_names(self) -> set[str]:
        """The names of the new files."""
        return {each.name for each in self.added}

    @property
    def version(self) -> Version | None:
        """The table before the next effect; None if there is none."""
        if self.schema is None:
            return self.before
        before, removed = self.before, self.removed
        old = () if before is None or removed is None else before.files
        kept = [k for k, each in enumerate(old) if removed is not None and each.name not in removed]
        new = [DataFile.of(each) for each in self.added]
        statistics = [parsed_json(each.statistics) for each in self.added]
        schema = self.schema
        former = {} if before is None else names_in(schema, before.schema)

        def bounds(column: str) -> tuple[pa.Array, pa.Array]:
            kind = schema.field(column).type
            low, high = _of_files(statistics, column, kind)
            if not kept:
                return low, high
            there = before is not None and column in former
            olds = (
                before.bounds(former[column]) if before is not None and there else (pa.nulls(len(old)),) * 2
            )
            lows, highs = (each.take(pa.array(kept, pa.int64())).cast(kind) for each in olds)
            return pa.concat_arrays([lows, low]), pa.concat_arrays([highs, high])

        number, position = (-1, None) if before is None else (before.number, before.position)
        return Version(number, position, schema, [*(self._marked(old[k]) for k in kept), *new], bounds)

    def _marked(self, file: DataFile) -> DataFile:
        rows = self.deleted.get(file.name)
        return file if rows is None else replace(file, deleted=MarkedRows(file.deleted, rows))


def _of_files(
    statistics: Sequence[Mapping[str, Any]], column: str, kind: pa.DataType
) -> tuple[pa.Array, pa.Array]:
    low, high = ([each[which].get(column) for each in statistics] for which in ("minValues", "maxValues"))
    return _typed(low, kind), _typed(high, kind)


def _typed(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Bounds from statistics as values of a column; null if that is not possible."""
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return pa.array(values, kind)
    return pa.nulls(len(values), kind)
