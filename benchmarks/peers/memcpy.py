"""The reference: a copy of the same bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from benchmarks import yardsticks
from benchmarks.corpora import Corpus
from benchmarks.peers.worker import given, serve


def main() -> None:
    asked = given()
    with pa.OSFile(asked["payloads"]) as file:
        corpus = Corpus(asked["corpus"], pa.ipc.open_file(file).read_all().column(0).chunk(0), {})
    copy = (yardsticks.memcpy_to_new if asked["to_new"] else yardsticks.memcpy)(corpus)

    def dump(path: str) -> None:
        (Path(path) / "bytes").write_bytes(yardsticks.memcpy_to_new(corpus)())

    # A copy has no rows to count, so this returns the expected number.
    serve(copy, lambda copied: asked["rows"], dump)


main()
