"""pyarrow's CSV reader on one thread, with given types, on the same rows as COPY writes them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from benchmarks import yardsticks
from benchmarks.peers.worker import given, serve


def main() -> None:
    asked = given()
    with pa.OSFile(asked["schema"]) as file:
        empty = pa.ipc.open_file(file).read_all()
    read = yardsticks.csv_reader(pa.py_buffer(Path(asked["csv"]).read_bytes()), empty)

    def dump(path: str) -> None:
        table = read()
        with pa.ipc.new_file(Path(path) / "public.wide.arrow", table.schema) as writer:
            writer.write_table(table)

    serve(read, len, dump)


main()
