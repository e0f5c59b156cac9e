"""pgoutput_fast.decode, on one thread or several."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import pgoutput_fast as pgo
from benchmarks.peers.worker import given, serve


def main() -> None:
    asked = given()
    # Reads the file into memory. If it were mapped, the first round would include its page faults.
    with pa.OSFile(asked["payloads"]) as file:
        payloads = pa.ipc.open_file(file).read_all().column(0)
    options = pgo.Options(threads=asked["threads"])

    def dump(path: str) -> None:
        out = pgo.decode(payloads, options=options)
        for name in {change.relation.qualified_name for change in out.changes}:
            table = out.table(name)
            table = table.select([column for column in table.column_names if not column.startswith("_")])
            with pa.ipc.new_file(Path(path) / f"{name}.arrow", table.schema) as writer:
                writer.write_table(table)

    def rows(out: pgo.Decoded) -> int:
        # A truncate counts as a row here, but not in other decoders.
        truncated = sum(map(len, out.truncates["relations"].to_pylist()))
        return sum(change.batch.num_rows for change in out.changes) - truncated

    serve(lambda: pgo.decode(payloads, options=options), rows, dump)


main()
