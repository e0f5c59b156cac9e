"""The settings of Parquet files with decoded rows do what they are for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.storage.parquet import COMPRESSIONS, Compression, rows_writer

ROWS = 100_000
GENERATOR = np.random.default_rng(1)
TABLE = pa.table(
    {
        "repeats": pa.array(np.array(["new", "paid", "sent"])[GENERATOR.integers(0, 3, ROWS)]),
        "differs": pa.array(GENERATOR.integers(0, 1 << 60, ROWS)),
    }
)


@pytest.fixture(scope="module")
def written() -> pq.ParquetFile:
    out = pa.BufferOutputStream()
    with rows_writer(out, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return pq.ParquetFile(pa.BufferReader(out.getvalue()))


def test_the_rows_are_kept(written: pq.ParquetFile) -> None:
    assert written.read().equals(TABLE)


def test_only_a_column_that_repeats_has_a_dictionary(written: pq.ParquetFile) -> None:
    """The other one has a small dictionary page of the attempt, and plain pages."""
    repeats, differs = (written.metadata.row_group(0).column(k) for k in range(2))
    assert repeats.total_uncompressed_size < ROWS
    assert differs.data_page_offset - differs.dictionary_page_offset < 2 << 16


def test_readers_can_skip(written: pq.ParquetFile) -> None:
    column = written.metadata.row_group(0).column(1)
    assert column.statistics.has_min_max
    assert column.has_column_index
    assert column.has_offset_index


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_page_is_compressed_as_asked(compression: Compression) -> None:
    out = pa.BufferOutputStream()
    with rows_writer(out, TABLE.schema, compression) as writer:
        writer.write_table(TABLE)
    found = pq.ParquetFile(pa.BufferReader(out.getvalue()))
    assert found.read().equals(TABLE)
    expected = "UNCOMPRESSED" if compression == "none" else compression.upper()
    group = found.metadata.row_group(0)
    assert {group.column(k).compression for k in range(group.num_columns)} == {expected}


def test_other_arguments_reach_the_writer() -> None:
    collected: list[pq.FileMetaData] = []
    with rows_writer(pa.BufferOutputStream(), TABLE.schema, metadata_collector=collected) as writer:
        writer.write_table(TABLE)
    assert collected[0].num_rows == ROWS
