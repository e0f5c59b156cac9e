"""orjson on the output of the plugin wal2json for the same rows, and the conversion to the columns' types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.peers.worker import given, serve


def main() -> None:
    asked = given()
    with pa.OSFile(asked["schema"]) as file:
        schema = pa.ipc.open_file(file).schema
    lines = Path(asked["json"]).read_bytes().splitlines()

    def decode() -> pa.Table:
        columns: list[list[Any]] = [[] for _ in schema]
        appends = [column.append for column in columns]
        for line in lines:
            change = orjson.loads(line)
            if change["action"] == "I":
                for append, column in zip(appends, change["columns"], strict=True):
                    append(column["value"])
        return pa.table(
            [typed(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )

    def dump(path: str) -> None:
        with pa.ipc.new_file(Path(path) / "public.wide.arrow", schema) as writer:
            writer.write_table(decode())

    serve(decode, len, dump)


def typed(values: list[Any], wanted: pa.DataType) -> Any:
    if pa.types.is_binary(wanted):
        return pa.array([each and bytes.fromhex(each) for each in values], wanted)
    if pa.types.is_decimal(wanted):
        # orjson converts JSON numbers to floats, which have more digits than these decimals.
        return pc.round(pa.array(values, pa.float64()), wanted.scale).cast(wanted)
    if pa.types.is_date(wanted) or pa.types.is_timestamp(wanted):
        return pa.array(values, pa.string()).cast(wanted)
    return pa.array(values, wanted)


main()
