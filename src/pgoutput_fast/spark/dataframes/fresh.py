"""Reads the latest state of a mirrored table: Spark reads its files, and the driver the effect of pending changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.merge.effect.effect import UNREPRESENTABLE, Effect
from pgoutput_fast.merge.effect.fill import Fill
from pgoutput_fast.merge.match import is_plain
from pgoutput_fast.merge.search import rows_to_remove
from pgoutput_fast.mirror.view.layers import Changed
from pgoutput_fast.mirror.view.moment import Moment, open_moment
from pgoutput_fast.mirror.view.read import chosen_columns, effects_of, fresh, needed_columns
from pgoutput_fast.protocol.lsn import Lsn
from pgoutput_fast.spark.places import spark_path
from pgoutput_fast.spark.types import spark_schema
from pgoutput_fast.tables.columns import fitted, in_schema, merged
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import OpenVersion

__all__ = ["frame_at", "read_fresh"]


def read_fresh(
    target: str | os.PathLike[str],
    table: str,
    columns: Sequence[str] | None = None,
    position: Lsn | datetime | Literal["latest"] = "latest",
    spark: SparkSession | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> DataFrame:
    """Returns a mirrored table with all changes in its history, including those not yet in its current table.

    The rows are those of `pgoutput_fast.mirror.fresh`. Spark reads the files of the current table, without the jars of
    Delta. The driver reads the changes missing in the current table, and runs a query for values that these lack. The
    call fixes the moment: to see later changes, call it again. A running mirror may remove the files of a version older
    than its recorded points; the query then fails.

    If current tables are in DuckDB or DuckLake, the driver reads the whole table.

    Args:
        target: path or URI of the mirror's target. The driver and the executors must see a directory at the same path.
            Spark must be able to read the URI, too. Spark gets it without its query and its password.
        table: qualified name, quoted as in SQL.
        columns: the columns; None for all.
        position: `"latest"`; an LSN, as for `parse_lsn`; or a datetime with a time zone, for everything committed until
            then. Tables read at the same LSN are consistent.
        spark: the session. Default: the active session.
        storage_options: options of delta-rs for the store, beside the URI.
        iceberg_catalog: that of the mirror, if it has one.

    Raises:
        KeyError: if the table is not mirrored, or has no such column.
        LookupError: if the position cannot be read; the message lists those that can.
        pgoutput_fast.mirror.MirrorError: if the table is stopped, or must be loaded.
        ValueError, TypeError: if `position` is not a position; ValueError also if changes are missing.

    Example:
        orders = read_fresh("lake/", "public.orders")
        orders.where("note = 'paid'").count()
    """
    if columns is not None:
        expect_list("columns", columns)
    session = SparkSession.active() if spark is None else spark
    moment = open_moment(target, table, position, TableOptions(storage_options, iceberg_catalog))
    chosen = chosen_columns(columns, moment.schema, table)
    if moment.base.files is not None:
        return frame_at(session, moment, chosen)
    rows = fresh(
        target, table, chosen, position, storage_options=storage_options, iceberg_catalog=iceberg_catalog
    )
    return _frame_of(session, rows)


def frame_at(session: SparkSession, moment: Moment, columns: Sequence[str]) -> DataFrame:
    """The rows of a table at a moment, with these columns. Its base consists of files.

    Raises:
        ValueError: if changes are missing.
    """
    needed = needed_columns(moment, columns)
    schema = pa.schema([field for field in moment.base.schema if field.name in needed])
    assert moment.base.files is not None
    rows = _Rows(_read(session, moment.base.files, schema), schema)
    for part in effects_of(moment, columns):
        rows = rows.filled(part, moment.table) if isinstance(part, Fill) else rows.changed(part, moment.table)
    return rows.named(columns)


def _read(session: SparkSession, files: Sequence[str], schema: pa.Schema) -> DataFrame:
    """The rows of Parquet files. A column that a file lacks is null."""
    types = spark_schema(schema)
    if not files:
        return session.createDataFrame([], types)
    reader = session.read.schema(types).option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(*map(spark_path, files))


def _frame_of(session: SparkSession, rows: pa.Table) -> DataFrame:
    # Spark considers a table empty if its first chunk is.
    return session.createDataFrame(rows.combine_chunks(), spark_schema(rows.schema))


class _Rows:
    """The rows of a table. The n-th column of the DataFrame is named `c<n>`, which avoids name conflicts.

    Args:
        frame: the rows.
        schema: their columns.
    """

    def __init__(self, frame: DataFrame, schema: pa.Schema) -> None:
        self.schema = schema
        self._frame = frame.toDF(*(f"c{n}" for n in range(len(schema))))

    def named(self, columns: Sequence[str]) -> DataFrame:
        """The rows with these columns, under their original names."""
        return self._frame.select([F.col(self._short(name)).alias(name) for name in columns])

    def changed(self, effect: Effect, table: str) -> _Rows:
        """The rows after an effect.

        Raises:
            ValueError: if the effect lacks rows, or has incompatible types.
        """
        types = fitted(self.schema, effect.rows.schema, table, lambda *_: True)
        before = self._in_schema(merged(self.schema, types))
        leaving = _leaving(effect, in_schema(effect.rows, before.schema))
        looked_up = before._collected(effect.wanted()[0] if effect.key else leaving)
        after = Changed(looked_up, effect, table)
        rows = pa.concat_tables([before.schema.empty_table(), *after.pieces(before.schema.names)])
        new = _frame_of(before._frame.sparkSession, rows)
        frame = new if effect.truncated else before._joined(leaving, "left_anti").union(new)
        return _Rows(frame, before.schema)

    def filled(self, fill: Fill, table: str) -> _Rows:
        """The rows with other names of columns, and values in new columns of all of them.

        Raises:
            ValueError: if a column has a type that does not fit.
        """
        known = self._renamed(fill) if fill.renamed else self
        types = fitted(known.schema, fill.schema, table, lambda *_: True)
        before, values = known._in_schema(merged(known.schema, types)), fill.in_types(types).values
        shorts = {name: before._short(fill.sources.get(name, name)) for name in before.schema.names}
        frame = before._frame
        if values.num_columns:
            new = _frame_of(frame.sparkSession, values)
            new = new.toDF(*(f"v{shorts[name]}" for name in values.column_names))
            frame = frame.crossJoin(F.broadcast(new))
            shorts |= {name: f"v{shorts[name]}" for name in values.column_names}
        both = {former: [former, name] for name, former in fill.sources.items()}
        columns = [_marked(name, F.col(shorts[name]), both) for name in before.schema.names]
        return _Rows(frame.select(columns), before.schema)

    def _renamed(self, fill: Fill) -> _Rows:
        """The rows after columns got another name. One that had such a name already is gone."""
        kept = [field for field in self.schema if field.name not in fill.renamed]
        names = fill.names([field.name for field in kept])
        now = {former: [name] for name, former in fill.renamed.items()}
        frame = self._frame.select(
            [_marked(field.name, F.col(self._short(field.name)), now) for field in kept]
        )
        return _Rows(
            frame, pa.schema([field.with_name(name) for field, name in zip(kept, names, strict=True)])
        )

    def _short(self, name: str) -> str:
        return f"c{self.schema.get_field_index(name)}"

    def _in_schema(self, schema: pa.Schema) -> _Rows:
        """The rows with the columns of a schema. Missing ones are null."""
        if schema.equals(self.schema):
            return self
        columns = [
            (F.col(self._short(field.name)) if field.name in self.schema.names else F.lit(None)).cast(
                field.dataType
            )
            for field in spark_schema(schema)
        ]
        return _Rows(self._frame.select(columns), schema)

    def _joined(self, keys: pa.Table, how: Literal["left_semi", "left_anti"]) -> DataFrame:
        """The rows that match a key in its columns, or those that match none. Without columns, all rows match."""
        if keys.num_rows == 0 or keys.num_columns == 0:
            return self._frame if (keys.num_rows > 0) == (how == "left_semi") else self._frame.limit(0)
        shorts = [self._short(name) for name in keys.column_names]
        keys = in_schema(keys, pa.schema([self.schema.field(name) for name in keys.column_names]))
        wanted = _frame_of(self._frame.sparkSession, keys).toDF(*(f"k{short}" for short in shorts))
        same = [F.col(short).eqNullSafe(F.col(f"k{short}")) for short in shorts]
        return self._frame.join(F.broadcast(wanted), same, how)

    def _collected(self, keys: pa.Table) -> OpenVersion:
        """The rows that match a key, on the driver."""
        rows = self.schema.empty_table()
        if keys.num_rows:
            matches = self._joined(keys, "left_semi").toArrow().rename_columns(self.schema.names)
            rows = in_schema(matches, self.schema)
        return OpenVersion(0, self.schema, lambda columns: iter([rows.select(columns)]), None)


def _marked(name: str, column: Column, names: Mapping[str, Sequence[str]]) -> Column:
    """A column; that of the marks of values without an Arrow form with other names in place of some."""
    if name != UNREPRESENTABLE or not names:
        return column

    def named(each: Column) -> Column:
        found = F.array(each)
        for former, others in names.items():
            found = F.when(each == F.lit(former), F.array(*map(F.lit, others))).otherwise(found)
        return found

    return F.flatten(F.transform(column, named))


def _leaving(effect: Effect, rows: pa.Table) -> pa.Table:
    """The values of the rows to remove from the files of a table.

    Rows without a key are removed if their plain values match a removed row: the driver then restores the remaining
    ones.
    """
    removed = rows_to_remove(effect, rows)
    if effect.key:
        return removed
    return removed.select([field.name for field in removed.schema if is_plain(field.type)])
