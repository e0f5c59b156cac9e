"""Yardsticks for decoding: memcpy, pyarrow's CSV reader and a few lines of Python."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

import pgoutput_fast as pgo
from benchmarks.corpora import Corpus
from benchmarks.corpora.columns import Cells

__all__ = [
    "check_csv",
    "check_python",
    "csv_reader",
    "fill",
    "import_seconds",
    "memcpy",
    "memcpy_to_new",
    "parse_wide_text",
    "table_of_text",
]


def memcpy(corpus: Corpus) -> Callable[[], None]:
    """Copies the corpus's bytes to memory that is already mapped."""
    source = corpus.bytes
    target = np.empty_like(source)
    target[:] = 1  # maps its pages
    return lambda: np.copyto(target, source)


def fill(decoded: pgo.Decoded) -> Callable[[], None]:
    """Repeatedly writes one byte to as much memory as the columns of a result have; this memory is already mapped.

    Columns of nulls do not count: the decoder writes nothing for them.
    """
    arrays = [
        each for change in decoded.changes for each in change.batch.columns if each.null_count < len(each)
    ]
    sizes = [buffer.size for array in arrays for buffer in array.buffers() if buffer is not None]
    targets = [np.ones(size, np.uint8) for size in sizes]

    def write() -> None:
        for target in targets:
            target.fill(7)

    return write


def memcpy_to_new(corpus: Corpus) -> Callable[[], object]:
    """Copies the corpus's bytes to memory that the kernel must map first, as for a decoder's first output."""
    source = corpus.bytes
    return lambda: np.copy(source)


def import_seconds(batch: pa.RecordBatch, times: int) -> float:
    """CPU seconds in which pyarrow imports a batch `times` times from Arrow's C interface, and frees it again.

    This is how the decoder's batches become pyarrow objects. The structures must be exported first; that does not
    count.
    """
    # sizeof(struct ArrowArray)
    structures = [ctypes.create_string_buffer(80) for _ in range(times)]
    addresses = [ctypes.addressof(each) for each in structures]
    for address in addresses:
        batch._export_to_c(address)
    start = time.process_time()
    for address in addresses:
        pa.RecordBatch._import_from_c(address, batch.schema)
    return time.process_time() - start


def csv_reader(data: pa.Buffer, truth: pa.Table) -> Callable[[], pa.Table]:
    """Reads the wide table's rows on one thread, into their types if the reader supports them."""
    types = {field.name: field.type for field in truth.schema}
    types["data"] = pa.string()  # the reader cannot read bytea's hexadecimal digits
    read = csv.ReadOptions(use_threads=False, column_names=truth.column_names)
    convert = csv.ConvertOptions(
        column_types=types,
        true_values=["t"],
        false_values=["f"],
        null_values=[""],
        strings_can_be_null=True,
    )
    return lambda: csv.read_csv(pa.BufferReader(data), read, convert_options=convert)


def check_csv(table: pa.Table, truth: pa.Table, cells: dict[str, Cells]) -> None:
    """Asserts that the CSV reader gives the same values as decoding."""
    for name in truth.column_names:
        wanted = pa.chunked_array([cells[name].text.cast(pa.string())]) if name == "data" else truth[name]
        assert table[name].equals(wanted), f"column {name} read from CSV differs"


def parse_wide_text(messages: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """A simple decoder: loops over messages and cells, then pyarrow's casts.

    For messages of one table in text format, whose updates have no old row.
    """
    columns: list[list[bytes | None]] = [[] for _ in schema]
    for message in messages:
        if message[0] not in b"IU":
            continue
        at = 8
        for column in columns:
            if message[at] == 110:  # n
                column.append(None)
                at += 1
            else:
                end = at + 5 + int.from_bytes(message[at + 1 : at + 5], "big")
                column.append(message[at + 5 : end])
                at = end
    return table_of_text(columns, schema)


def table_of_text(columns: Sequence[Sequence[bytes | None]], schema: pa.Schema) -> pa.Table:
    """Converts cells in PostgreSQL's text format to their columns' types."""
    arrays: list[Any] = []
    for field, column in zip(schema, columns, strict=True):
        if pa.types.is_binary(field.type):
            data = [each and bytes.fromhex(each[2:].decode()) for each in column]
            arrays.append(pa.array(data, pa.binary()))
            continue
        text = pa.array(column, pa.binary()).cast(pa.string())
        arrays.append(pc.equal(text, "t") if pa.types.is_boolean(field.type) else text.cast(field.type))
    return pa.table(arrays, schema=schema)


def check_python(table: pa.Table, truth: pa.Table) -> None:
    """Asserts that the few lines of Python give the same values as decoding."""
    for name in truth.column_names:
        assert table[name].equals(truth[name]), f"column {name} parsed in Python differs"
