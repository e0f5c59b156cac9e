"""New columns that have values in older rows, and columns with another name.

All older rows have the same value in a new column, or those that another column had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.alter import altered, alters, without_marks
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.marks import with_marks
from pgoutput_fast.merge.effect.net_effect import effect_of
from pgoutput_fast.merge.effect.renames import Rename, absent, begins
from pgoutput_fast.tables.columns import in_schema

__all__ = ["Fill", "Part", "parts_of"]


@dataclass(frozen=True)
class Fill:
    """Gives columns of a table another name, and then all of its rows values in new columns.

    Attributes:
        values: one row: the columns that have the same value in each row.
        copied: one row of nulls: the columns that get the values of others.
        sources: {column of `copied`: the column with its values}.
        renamed: {name of a column: its name until now}.
    """

    values: pa.Table
    copied: pa.Table
    sources: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def names(self, before: Sequence[str]) -> list[str]:
        """The names of columns after they got another one.

        Args:
            before: their names until now.

        >>> Fill(pa.table({}), pa.table({}), renamed={"c": "b"}).names(["id", "b"])
        ['id', 'c']
        """
        now = {former: name for name, former in self.renamed.items()}
        return [now.get(name, name) for name in before]

    @property
    def schema(self) -> pa.Schema:
        """The new columns."""
        return pa.schema([*self.values.schema, *self.copied.schema])

    def in_types(self, schema: pa.Schema) -> Fill:
        """The same in the types of a table.

        Args:
            schema: has the new columns, among others.
        """
        values, copied = (
            in_schema(each, pa.schema([schema.field(name) for name in each.column_names]))
            for each in (self.values, self.copied)
        )
        return replace(self, values=values, copied=copied)

    def of(self, columns: Sequence[str]) -> Fill:
        """The same for some of the new columns. The marks of values without an Arrow form are still those of all."""
        values, copied = (
            each.select([name for name in each.column_names if name in columns])
            for each in (self.values, self.copied)
        )
        return replace(self, values=values, copied=copied)

    def rename(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Rows with the new names, also in the marks of values without an Arrow form.

        Args:
            rows: have some of the columns, under their names until now.
            columns: the columns of the table, under their new names.

        >>> rows = pa.table({"b": [None], "_unrepresentable": [["b"]]})
        >>> Fill(pa.table({}), pa.table({}), renamed={"c": "b"}).rename(rows, ["id", "c"]).to_pylist()
        [{'c': None, '_unrepresentable': ['c']}]
        """
        renamed = rows.rename_columns(self.names(rows.column_names))
        return with_marks(renamed, {name: self.renamed.get(name, name) for name in columns})

    def apply(self, rows: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows with the values. One without an Arrow form is marked in the new column, too.

        Args:
            rows: have the new columns in any type, and their sources.
            columns: the columns of the table; by default those of the rows.

        >>> fill = Fill(pa.table({"c": [5]}), pa.table({"d": pa.nulls(1, pa.int64())}), {"d": "id"})
        >>> fill.apply(pa.table({"id": [1, 2], "c": pa.nulls(2), "d": pa.nulls(2)})).to_pydict()
        {'id': [1, 2], 'c': [5, 5], 'd': [1, 2]}
        """
        for new in self.schema:
            source = self.sources.get(new.name)
            if source is None:
                one = self.values.column(new.name).combine_chunks()
                column = one.take(pa.array(np.zeros(rows.num_rows, np.int64)))
            else:
                column = in_schema(rows.select([source]).rename_columns([new.name]), pa.schema([new])).column(
                    0
                )
            rows = rows.set_column(rows.schema.get_field_index(new.name), new, column)
        if not self.sources:
            return rows
        columns = rows.column_names if columns is None else columns
        return with_marks(rows, {name: self.sources.get(name, name) for name in columns})


Part: TypeAlias = Effect | Fill
"""What changes do to a table in one step."""


def parts_of(changes: pa.Table, key: Sequence[str], renames: Sequence[Rename] = ()) -> list[Part]:
    """What changes do to a table, in order. The changes of a history between two rows of `alter` are one effect.

    Args:
        changes, key: as for `effect_of`; there may be rows of `alter` among the changes.
        renames: the columns that get another name in place. Other renamed columns become new ones.

    Raises:
        ValueError: as `effect_of`.
    """
    changes = without_marks(changes)
    fills, cuts = alters(changes), begins(renames, changes)
    steps = sorted({0, *fills, *(at + 1 for at in fills), *cuts, changes.num_rows})
    parts: list[Part] = []
    for begin, end in pairwise(steps):
        rows = changes.slice(begin, end - begin)
        if begin in fills:
            parts.append(_fill_of(rows, renames))
            continue
        lacking = absent(renames, rows["_commit_lsn"][0].as_py(), rows["_seq"][0].as_py()) if renames else ()
        names = [each for each in rows.column_names if each in lacking and each not in key]
        parts.append(effect_of(rows.drop_columns(names), key))
    return parts or [effect_of(changes, key)]


def _fill_of(row: pa.Table, renames: Sequence[Rename]) -> Fill:
    filled, sources = altered(row)
    commit = row["_commit_lsn"][0].as_py()
    in_place = {(each.former, each.name) for each in renames if each.lsn == commit}
    renamed = {name: former for name, former in sources.items() if (former, name) in in_place}
    sources = {name: former for name, former in sources.items() if name not in renamed}
    return Fill(row.select(filled), row.select([*sources]), sources, renamed)
