"""A simple loop in Python and pyarrow's casts. It works only for this one table, in text format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from benchmarks import yardsticks
from benchmarks.peers.worker import given, messages, serve


def main() -> None:
    asked = given()
    with pa.OSFile(asked["schema"]) as file:
        schema = pa.ipc.open_file(file).schema
    payloads = messages(asked["messages"])

    def dump(path: str) -> None:
        table = yardsticks.parse_wide_text(payloads, schema)
        with pa.ipc.new_file(Path(path) / "public.wide.arrow", schema) as writer:
            writer.write_table(table)

    serve(lambda: yardsticks.parse_wide_text(payloads, schema), len, dump)


main()
