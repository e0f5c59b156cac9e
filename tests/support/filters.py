"""Tables with a column of every type, and the results of filters with each reader of Delta tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from support import pg

__all__ = ["CREATE", "EXTREMES", "ORDINARY", "expect_filters", "forget_bounds"]

CREATE = (
    "CREATE TABLE t (id int PRIMARY KEY, small int2, big int8, price numeric(10, 2), wide numeric(38, 6), ratio float8,"
    " single float4, yes bool, note text, body text, day date, moment timestamp, instant timestamptz, code uuid,"
    " nothing int, odd int, blob bytea, tags text[], span int4range)"
)
# The body is longer than the bounds that Arrow stores.
ORDINARY = (
    "INSERT INTO t SELECT n, n, n::int8 << 40, n + 0.25, n * 12345678901234567890.123457, n + 0.5, n + 0.125, n % 2 = 0,"
    " repeat(chr(96 + n), 50), repeat(chr(96 + n), 5000), date '2024-01-01' + n,"
    " timestamp '2024-01-01 01:02:03.456789' + n * interval '1 day',"
    " timestamptz '2024-01-01 01:02:03.456789Z' + n * interval '1 day', md5(n::text)::uuid, NULL,"
    " CASE WHEN n % 3 > 0 THEN n END, '\\x01', ARRAY['x'], int4range(n, n + 1) FROM generate_series(1, 9) n"
)
EXTREMES = (
    "INSERT INTO t (id, ratio, single, price, wide, day, moment, instant, note) VALUES"
    " (20, 'NaN', 'NaN', 0, 0, '0001-01-01', '9999-12-31 23:59:59.999999', '0001-01-01 00:00Z', U&'\\+10FFFF'),"
    " (21, 'inf', '-inf', -99.5, 99999999999999999999999999999999.999999, '9999-12-31', '0001-01-01',"
    " '9999-12-31 23:59:59.999999Z', ''), (22, 2, 2, 7, 7, '20000-01-01', '20000-01-01', '20000-01-01', 'x')"
)
_TYPES = {
    "id": "INTEGER", "small": "SMALLINT", "big": "BIGINT", "price": "DECIMAL(10, 2)", "wide": "DECIMAL(38, 6)",
    "ratio": "DOUBLE", "single": "REAL", "yes": "BOOLEAN", "note": "VARCHAR", "body": "VARCHAR", "day": "DATE",
    "moment": "TIMESTAMP", "instant": "TIMESTAMPTZ", "code": "VARCHAR", "odd": "INTEGER", "later": "DECIMAL(10, 2)",
}  # fmt: skip
_MICROSECONDS = {"moment": "Timestamp(Microsecond, None)", "instant": 'Timestamp(Microsecond, Some("UTC"))'}
_OPERATORS = {"=": pc.equal, ">=": pc.greater_equal, "<=": pc.less_equal}
_FLOATS = ("ratio", "single")

# A filter: (column, operator, the id of the row whose value is compared). Without an operator, it matches nulls.
_Filter = tuple[str, str, int]


def _filters(names: list[str]) -> Iterator[_Filter]:
    for name in names:
        yield name, "", 0
    for name in set(names) & set(_TYPES):
        for row in (2, 20, 21):
            for operator in _OPERATORS:
                yield name, operator, row


class _Table:
    """A Delta table, and its filters with each reader."""

    def __init__(self, uri: str) -> None:
        self._table = deltalake.DeltaTable(uri)
        self._uri = uri
        self.names: list[str] = self._table.to_pyarrow_dataset().schema.names
        self._dataset = self._table.to_pyarrow_dataset()
        self._rows = self._dataset.to_table(columns=[name for name in self.names if name in _TYPES])
        self._duckdb = duckdb.connect()
        self._duckdb.register("found", self._dataset)
        self._duckdb.execute("SET TimeZone = 'UTC'")
        self._engine = deltalake.QueryBuilder().register("found", self._table)

    def value(self, column: str, row: int) -> pa.Scalar:
        rows = self._rows.filter(pc.equal(self._rows["id"], row))
        return rows[column][0] if rows.num_rows else pa.scalar(None)

    def _expression(self, wanted: _Filter) -> Any:
        column, operator, row = wanted
        field, value = pc.field(column), self.value(column, row) if operator else None
        if value is None:
            return field.is_null()
        is_nan = column in _FLOATS and value.as_py() != value.as_py()
        return field.is_nan() if is_nan and operator == "=" else _OPERATORS[operator](field, value)

    def dataset(self, wanted: _Filter, _: str) -> set[int]:
        rows = self._dataset.to_table(columns=["id"], filter=self._expression(wanted))
        return set(rows["id"].to_pylist())

    def pyarrow(self, wanted: _Filter, _: str) -> set[int]:
        rows = self._table.to_pyarrow_table(columns=["id"], filters=self._expression(wanted))
        return set(rows["id"].to_pylist())

    def pandas(self, wanted: _Filter, _: str) -> set[int]:
        return set(self._table.to_pandas(columns=["id"], filters=self._expression(wanted))["id"].dropna())

    def duckdb(self, _: _Filter, where: str) -> set[int]:
        return {row[0] for row in self._duckdb.execute(f"SELECT id FROM found WHERE {where}").fetchall()}

    def query(self, wanted: _Filter, where: str) -> set[int]:
        if wanted[0] in _MICROSECONDS:  # the engine's own timestamps have nanoseconds, and end in 2262
            where = re.sub(r"CAST\('(.*)' AS .*\)", rf"arrow_cast('\1', '{_MICROSECONDS[wanted[0]]}')", where)
        rows = pa.table(self._engine.execute(f"SELECT id FROM found WHERE {where}").read_all())
        return set(rows["id"].to_pylist())

    def polars(self, wanted: _Filter, _: str) -> set[int]:
        column, operator, row = wanted
        field = pl.col(column)
        if operator:
            value = pl.from_arrow(pa.array([self.value(column, row)]))[0]  # type: ignore[index]
            kind = pl.from_arrow(pa.array([self.value(column, row)])).dtype  # type: ignore[union-attr]
            compared = {"=": field.__eq__, ">=": field.__ge__, "<=": field.__le__}[operator]
            found = compared(pl.lit(value, dtype=kind))
        else:
            found = field.is_null()
        frame = pl.scan_delta(self._uri).filter(found).select("id").collect()
        return set(frame["id"].to_list())


def expect_filters(
    database: pg.Database, uri: str, *, foreign: bool = False, without: Sequence[str] = ()
) -> None:
    """Checks that each reader finds the same rows of `t` as the server.

    If delta-rs has written the files (`foreign`), their footers have bounds of floats without NaN, and its own engine
    misses rows with NaN. `without` names columns whose values in `t` are not those of all rows of the table.
    """
    table = _Table(uri)
    readers: dict[str, Callable[[_Filter, str], set[int]]] = {
        "dataset": table.dataset, "pyarrow": table.pyarrow, "pandas": table.pandas, "duckdb": table.duckdb,
        "query": table.query, "polars": table.polars,
    }  # fmt: skip
    columns = [name for name in table.names if not name.startswith("_") and name not in without]
    wrong = []
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET TimeZone = 'UTC'")
        cursor.execute("SELECT id FROM t WHERE ratio = 'NaN'")
        no_order = {row[0] for row in cursor.fetchall()}
        for wanted in _filters(columns):
            column, operator, row = wanted
            where, expected, has_value = _asked(cursor, wanted)
            if operator and not has_value:
                continue
            is_nan = column in _FLOATS and row in no_order
            for name, reader in readers.items():
                if foreign and name == "query" and is_nan:
                    continue
                if name in ("pyarrow", "pandas") and column not in ("price", "ratio", "moment"):
                    continue  # they use the dataset
                ids = expected
                if name in ("dataset", "pyarrow", "pandas") and column in _FLOATS and operator:
                    if is_nan and operator != "=":
                        continue  # Arrow does not order NaN
                    ids = expected - no_order if not is_nan else expected
                found = reader(wanted, where) - {None}  # a row of `alter` in a history
                if found != ids:
                    wrong.append((name, *wanted, sorted(found ^ ids)))
    assert wrong == [], wrong


def _asked(cursor: Any, wanted: _Filter) -> tuple[str, set[int], bool]:
    """(the filter as SQL of other engines, the ids that the server finds, whether it compares with a value)."""
    column, operator, row = wanted
    if not operator:
        cursor.execute(f"SELECT id FROM t WHERE {column} IS NULL")
        return f"{column} IS NULL", {found[0] for found in cursor.fetchall()}, True
    collation = ' COLLATE "C"' if column in ("note", "body") else ""
    cursor.execute(f"SELECT {column}::text FROM t WHERE id = {row}")
    text = (cursor.fetchone() or [None])[0]
    cursor.execute(
        f"SELECT id FROM t WHERE {column}{collation} {operator} (SELECT {column} FROM t WHERE id = {row})"
    )
    kind = _TYPES[column]
    return (
        f"{column} {operator} CAST('{text}' AS {kind})",
        {found[0] for found in cursor.fetchall()},
        text is not None,
    )


def forget_bounds(uri: str) -> None:
    """Rewrites the files of a table with the statistics of earlier versions of this package."""
    table = deltalake.DeltaTable(uri)
    files = pa.table(table.get_add_actions()).select(["path", "size_bytes", "num_records"]).to_pylist()
    actions = []
    for file in files:
        rows = file["num_records"]
        few = {
            "numRecords": rows,
            "minValues": {"id": 1},
            "maxValues": {"id": 99},
            "nullCount": {"id": 0, "price": 0},
        }
        actions.append(AddAction(file["path"], file["size_bytes"], {}, 0, False, json.dumps(few)))
    table.create_write_transaction(actions, "append", table.schema(), [])
