"""Decoded changes -> a row per key that a change touches: the new row, or the key that is gone. Imports no PySpark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.effect.column_names import RowNumbers, naming_rows
from pgoutput_fast.merge.effect.take import take
from pgoutput_fast.merge.match import Finder

__all__ = ["Upserts"]


@dataclass(frozen=True)
class Upserts:
    """Reduces the old row of each update: to a delete of the old key if the key changed, otherwise to nothing.

    Values that an update did not send are filled in from its old row.

    Attributes:
        table: the relation's name, for errors.
        keys: the columns that identify a row.
        prefix: the prefix of the metadata columns.
    """

    table: str
    keys: tuple[str, ...]
    prefix: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows.

        Args:
            batches: changes in apply order, with at least the metadata columns change_type, seq, key_only and
                unchanged. The two rows of an update may be in two batches.

        Raises:
            ValueError: for a truncate, for a value that neither row of an update has, and for a key without a value.
        """
        held: pa.Table | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = pa.Table.from_batches([batch])
            if held is not None:
                rows = pa.concat_tables([held, rows])
            whole = rows.num_rows - (rows[f"{self.prefix}change_type"][-1].as_py() == "update_preimage")
            held = rows.slice(whole) if whole < rows.num_rows else None
            yield from self._rows(rows.slice(0, whole)).to_batches()

    def _rows(self, rows: pa.Table) -> pa.Table:
        kinds = rows[f"{self.prefix}change_type"]
        truncates = pc.index(kinds, "truncate").as_py()
        if truncates >= 0:
            seq = rows[f"{self.prefix}seq"][truncates].as_py()
            self._refuse(
                seq,
                "the server truncated the table, and rows to upsert and delete cannot say that. Begin the target again "
                f"with the changes after this one: option where = '{self.prefix}seq > {seq}'",
            )
        is_old = pc.equal(kinds, "update_preimage").to_numpy()
        old = np.flatnonzero(is_old)
        rows = self._filled(rows, is_old)
        self._check_keys(rows)
        codes = Finder(rows.select(self.keys), keys=True).codes if len(old) else np.empty(0, np.int32)
        kept = ~is_old
        kept[old] = codes[old] != codes[old + 1]
        place = rows.column_names.index(f"{self.prefix}change_type")
        rows = rows.set_column(place, rows.field(place), pc.if_else(pa.array(is_old), "delete", kinds))
        return rows.filter(pa.array(kept))

    def _check_keys(self, rows: pa.Table) -> None:
        for name in self.keys:
            row = pc.index(rows[name].is_null(), True).as_py()
            if row >= 0:
                self._refuse(
                    rows[f"{self.prefix}seq"][row].as_py(),
                    f"column {name!r} of the key has no value: it is null, Arrow cannot represent it, or the replica "
                    "identity lacks the column",
                )

    def _filled(self, rows: pa.Table, is_old: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Table:
        place = rows.column_names.index(f"{self.prefix}unchanged")
        named = naming_rows(rows[place])
        if not named:
            return rows
        follows = np.concatenate([[False], is_old[:-1]])
        key_only = pc.fill_null(rows[f"{self.prefix}key_only"], False).to_numpy()
        for name, unsent in named.items():
            unsent = unsent[~is_old[unsent]]
            # The old row has at least the columns of the replica identity.
            there = follows[unsent] & ((name in self.keys) | ~key_only[unsent - 1])
            if not there.all():
                self._refuse(
                    rows[f"{self.prefix}seq"][int(unsent[~there][0])].as_py(),
                    f"the server did not send column {name!r}, because its large value is unchanged. With REPLICA "
                    "IDENTITY FULL it sends the value. Or leave the column out with the option columns",
                )
            rows = _with_values_of_row_before(rows, name, unsent)
        return rows.set_column(place, rows.field(place), pa.nulls(rows.num_rows, rows.field(place).type))

    def _refuse(self, seq: int, reason: str) -> NoReturn:
        raise ValueError(f"message {seq}, relation {self.table}: {reason}")


def _with_values_of_row_before(rows: pa.Table, name: str, numbers: RowNumbers) -> pa.Table:
    sources = np.arange(rows.num_rows)
    sources[numbers] -= 1
    place = rows.column_names.index(name)
    return rows.set_column(place, rows.field(place), take(rows[name], sources))
