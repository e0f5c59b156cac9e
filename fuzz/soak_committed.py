"""Decodes one streamed transaction of many rows in the committed view, within bounded memory.

    python fuzz/soak_committed.py --rows 20000000

Sends blocks of inserts, then the Stream Commit. Reads all results of `Decoder.stream` and sums the ids. Fails if a row
is missing, if the peak memory is more than `--limit` MB above the memory with one input batch, or if a spill file
remains.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pgoutput_fast as pgo
from pgoutput_fast import encode

XID = 700
FIRST_ID = 10_000_000  # so that all ids have the same number of digits
ORDERS = encode.RelationSpec(
    16401,
    "public",
    "orders",
    (
        encode.ColumnSpec("id", 23, key=True),
        encode.ColumnSpec("price", 1700, ((12 << 16) | 2) + 4),
        encode.ColumnSpec("changed", 1184),
        encode.ColumnSpec("note", 25),
    ),
)


def block(first: int, rows: int) -> pa.Array:
    """A stream block of inserts with ids from `first` on. Copies one message and overwrites the digits of its id."""
    row = [
        str(first + FIRST_ID),
        "1234.50",
        "2026-11-21 12:00:00.5+00",
        "forty characters of text in every row ...",
    ]
    template = encode.encode_insert(ORDERS.oid, row, xid=XID)
    at = template.index(row[0].encode())
    inserts = np.tile(np.frombuffer(template, np.uint8), (rows, 1))
    ids = np.arange(first + FIRST_ID, first + FIRST_ID + rows)
    for digit in range(8):
        inserts[:, at + 7 - digit] = ids // 10**digit % 10 + ord("0")
    head = [encode.encode_stream_start(XID, first == 0), encode.encode_relation(ORDERS, xid=XID)]
    tail = encode.encode_stream_stop()
    lengths = np.array([*map(len, head), *([len(template)] * rows), len(tail)])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = b"".join([*head, inserts.tobytes(), tail])
    return pa.BinaryArray.from_buffers(
        pa.binary(), rows + 3, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def payloads(rows: int, batch: int) -> Iterator[pa.Array]:
    """The whole transaction, block by block."""
    for first in range(0, rows, batch):
        yield block(first, min(batch, rows - first))
    yield pa.array([encode.encode_stream_commit(XID, 500, 508, 0)], pa.binary())


def peak() -> float:
    """Peak memory of this process in MB. Linux only: getrusage would also count the parent's memory at the fork."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def soak(rows: int, batch: int, options: pgo.Options) -> dict[str, float]:
    """Run once and return the figures.

    Raises:
        AssertionError: if rows are missing or ids are wrong.
    """
    for first in (0, batch):
        block(first, batch)
    before = peak()
    started, cpu = time.monotonic(), time.process_time()
    count = total = pieces = largest = 0
    with pgo.Decoder(options) as decoder:
        for out in decoder.stream(payloads(rows, batch)):
            pieces += 1
            here = sum(each.batch.num_rows for each in out.changes)
            largest = max(largest, here)
            count += here
            total += sum(pc.sum(each.batch.column("id")).as_py() for each in out.changes)
    assert count == rows, f"{count} rows of {rows}"
    assert total == rows * FIRST_ID + rows * (rows - 1) // 2, "the ids are wrong"
    return {
        "rows": rows,
        "seconds": time.monotonic() - started,
        "ns of CPU per row": (time.process_time() - cpu) / rows * 1e9,
        "pieces": pieces,
        "rows of the largest piece": largest,
        "MB above the input batch": peak() - before,
        "MB at the peak": peak(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="rows per input batch")
    parser.add_argument(
        "--limit", type=float, default=300, help="allowed MB of memory above the memory with one input batch"
    )
    parser.add_argument(
        "--memory-limit",
        type=int,
        default=pgo.Options().memory_limit,
        help="memory limit of the decoder in bytes",
    )
    parser.add_argument("--directory", help="directory for spill files; default: a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        options = pgo.Options(
            transactions="committed", memory_limit=given.memory_limit, spill_directory=directory
        )
        figures = soak(given.rows, given.batch, options)
        left = list(Path(directory).iterdir())
    for name, value in figures.items():
        print(f"{name:>28}: {value:,.1f}" if isinstance(value, float) else f"{name:>28}: {value:,}")
    if left:
        print(f"{len(left)} spill files remain")
    if figures["MB above the input batch"] > given.limit:
        print(f"more than {given.limit:g} MB above the memory with one input batch")
    return int(bool(left) or figures["MB above the input batch"] > given.limit)


if __name__ == "__main__":
    sys.exit(main())
