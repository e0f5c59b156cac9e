"""Embedded Debezium with a Python handler that writes Delta tables. It runs with its own packages.

    python debezium_sink.py '<JSON>'

properties: of the connector. target: a directory for the tables `history` and `current`. columns: {name: Arrow's name
of its type}, if the table is another one than the wide one.

Every batch is appended to the history. Then the last row per key of the batch is merged into the current table.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyarrow import json as arrow_json
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

# In Debezium's format: decimals and bytes as texts, days as numbers, timestamps as texts.
JSON = pa.schema(
    {
        "id": pa.int64(), "a": pa.int32(), "b": pa.int32(), "c": pa.int16(), "price": pa.string(), "rate": pa.float64(),
        "yes": pa.bool_(), "day": pa.int32(), "at": pa.string(), "name": pa.string(), "note": pa.string(),
        "code": pa.string(), "key": pa.string(), "data": pa.string(), "more": pa.string(), "big": pa.int64(),
    }
)  # fmt: skip
TYPES = {"price": pa.decimal128(12, 2), "day": pa.date32(), "at": pa.timestamp("us", "UTC")}
# Columns that the connector adds to rows of the server, and those of them that the current table lacks.
CONNECTOR = pa.schema({"__op": pa.string(), "__lsn": pa.int64(), "__deleted": pa.string()})
ADDED = ("__op", "__deleted")


class Sink(BasePythonChangeHandler):
    """Writes batches into two Delta tables."""

    def __init__(self, target: Path, columns: pa.Schema | None) -> None:
        self._history, self._current = str(target / "history"), str(target / "current")
        self._columns = columns

    def handleJsonBatch(self, records: Any) -> None:  # noqa: N802  (Debezium's name)
        lines = [str(value) for value in (each.value() for each in records) if value is not None]
        if not lines:
            return
        rows = typed("\n".join(lines).encode(), self._columns)
        write_deltalake(self._history, rows, mode="append")
        self._merge(rows)

    def _merge(self, rows: pa.Table) -> None:
        numbered = rows.append_column("n", pa.array(range(rows.num_rows)))
        last = numbered.group_by("id").aggregate([("n", "max")])["n_max"]
        source = rows.take(last.combine_chunks().sort())
        columns = [name for name in source.column_names if name not in ADDED]
        if not DeltaTable.is_deltatable(self._current):
            write_deltalake(self._current, source.select(columns).slice(0, 0))
        ids = pc.min_max(source["id"]).as_py()
        values = {name: f"s.{name}" for name in columns}
        (
            DeltaTable(self._current)
            .merge(
                source,
                f"t.id = s.id AND t.id >= {ids['min']} AND t.id <= {ids['max']}",
                source_alias="s",
                target_alias="t",
                streamed_exec=False,
            )
            .when_matched_delete("s.__deleted = 'true'")
            .when_matched_update(values)
            .when_not_matched_insert(values, "s.__deleted <> 'true'")
            .execute()
        )


def typed(lines: bytes, columns: pa.Schema | None = None) -> pa.Table:
    """Rows of a batch, in lake types.

    Args:
        lines: JSON.
        columns: of the table, whose types are the same in JSON; None for the wide table.
    """
    schema = pa.schema([*(JSON if columns is None else columns), *CONNECTOR])
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = arrow_json.ReadOptions(use_threads=True, block_size=max(len(lines), 1))
    rows = arrow_json.read_json(io.BytesIO(lines), read_options=read, parse_options=options)
    for name, kind in TYPES.items() if columns is None else ():
        at = rows.column_names.index(name)
        column = rows[name]
        if name == "at":
            column = pc.replace_substring(column, "Z", "").cast(pa.timestamp("us")).cast(kind)
        rows = rows.set_column(at, name, column.cast(kind))
    return rows


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    given = job["columns"] and pa.schema(
        {name: pa.type_for_alias(kind) for name, kind in job["columns"].items()}
    )
    DebeziumJsonEngine(job["properties"], Sink(Path(job["target"]), given)).run()
