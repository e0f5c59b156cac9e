"""ADBC's driver for PostgreSQL. It reads no changes; it selects the same rows from a table into Arrow."""

from __future__ import annotations

from pathlib import Path

import adbc_driver_postgresql.dbapi
import pyarrow as pa

from benchmarks.peers.worker import given, serve


def main() -> None:
    connection = adbc_driver_postgresql.dbapi.connect(given()["uri"])

    def read() -> pa.Table:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM public.wide")
            return cursor.fetch_arrow_table()

    def dump(path: str) -> None:
        table = read()
        # For types that pyarrow does not have, the driver returns an extension type over their storage type.
        columns = [
            pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
            if isinstance(column.type, pa.BaseExtensionType)
            else column
            for column in table.columns
        ]
        table = pa.table(columns, names=table.column_names)
        with pa.ipc.new_file(Path(path) / "public.wide.arrow", table.schema) as writer:
            writer.write_table(table)

    serve(read, len, dump)


main()
