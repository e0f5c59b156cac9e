"""Compares settings of Parquet files with decoded rows: CPU time of a write, CPU time of a read, size.

    python -m benchmarks.parquet

One thread writes every table into memory and reads all of it. All settings run in turns. At full size this rewrites the
table in README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.timing import interleaved
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.parquet import SETTINGS

__all__ = ["TABLES", "VARIANTS", "section"]

MARKERS = "<!-- parquet figures -->", "<!-- end of parquet figures -->"
ROUNDS = 7
CHOSEN = "as chosen: zstd 1, dictionaries of 64 KiB"

# The changed settings of every variant.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    CHOSEN: {},
    "dictionaries of 1 MiB (pyarrow's default)": {"dictionary_pagesize_limit": 1 << 20},
    "no dictionaries": {"use_dictionary": False},
    "zstd 3": {"compression_level": 3},
    "lz4": {"compression": "lz4", "compression_level": None},
    "snappy": {"compression": "snappy", "compression_level": None},
    "not compressed": {"compression": "none", "compression_level": None},
    "pages of 256 KiB": {"data_page_size": 256 << 10},
    "pages of 4 MiB": {"data_page_size": 4 << 20},
    "no statistics": {"write_statistics": False},
    "no page index": {"write_page_index": False},
    "four row groups": {"row_groups": 4},
}


def _decoded(name: str, table: str, scale: float) -> pa.Table:
    """The rows of a corpus's table, in plain types, with their metadata columns."""
    decoded = pgo.decode(corpora.corpus(name, scale).payloads)
    batches = [each.batch for each in decoded.changes if each.relation.qualified_name == table]
    return to_types(pa.Table.from_batches(batches), stored_schema(batches[0].schema, "parquet"))


def _repeating(scale: float) -> pa.Table:
    """Rows with repeating texts: 5, 200, 2,000 and 20,000 different ones, 24 characters each."""
    generator = np.random.default_rng(20)
    rows = max(int(400_000 * scale), 1)
    columns = {"id": pa.array(np.arange(rows))}
    for count in (5, 200, 2_000, 20_000):
        texts = np.array([f"{word:024x}" for word in generator.integers(0, 1 << 62, count)])
        columns[f"of_{count}"] = pa.array(texts[generator.integers(0, count, rows)])
    return pa.table(columns)


TABLES = {
    "wide": lambda scale: _decoded("wide text", "public.wide", scale),
    "pgbench_history": lambda scale: _decoded("pgbench", "public.pgbench_history", scale),
    "repeating texts": _repeating,
}


def _write(rows: pa.Table, changes: Mapping[str, Any]) -> pa.Buffer:
    settings = {**SETTINGS, **changes}
    row_groups = settings.pop("row_groups", 1)
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, rows.schema, **settings) as writer:
        writer.write_table(rows, row_group_size=-(-rows.num_rows // row_groups))
    return out.getvalue()


def _read(file: pa.Buffer) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(file)).read(use_threads=False)


def section(table: str, scale: float, rounds: int) -> Section:
    """The figures of one table, as ratios to the chosen settings.

    Raises:
        AssertionError: if a variant does not keep the rows.
    """
    rows = TABLES[table](scale)
    files = {name: _write(rows, changes) for name, changes in VARIANTS.items()}
    for name, file in files.items():
        assert _read(file).equals(rows), name
    tasks: dict[str, Any] = {}
    for name, changes in VARIANTS.items():
        tasks[f"write {name}"] = lambda changes=changes: _write(rows, changes)
        tasks[f"read {name}"] = lambda file=files[name]: _read(file)
    measured = interleaved(tasks, {}, rounds)
    write, read = measured[f"write {CHOSEN}"], measured[f"read {CHOSEN}"]
    found = Section(
        f"Parquet: {table}, {rows.num_rows:,} rows, {rows.nbytes / 1e6:.0f} MB in memory",
        ["", "write, CPU s", "beside chosen", "read, CPU s", "beside chosen", "MB", "beside chosen"],
    )
    for name, file in files.items():
        writing, reading = measured[f"write {name}"], measured[f"read {name}"]
        found.rows.append(
            [
                name,
                f"{writing.seconds:.3f}",
                f"{1 / writing.speed_beside(write):.2f}",
                f"{reading.seconds:.3f}",
                f"{1 / reading.speed_beside(read):.2f}",
                f"{file.size / 1e6:.1f}",
                f"{file.size / files[CHOSEN].size:.2f}",
            ]
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.parquet", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tables' full size")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    text = "\n".join(str(section(table, given.scale, given.rounds)) for table in TABLES)
    heading = f"{machine()}; median of {given.rounds} rounds."
    print(f"{heading}\n\n{text}")
    if given.scale == 1:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()
