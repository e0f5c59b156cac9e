"""Rows in a file without a name."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from pgoutput_fast.storage.temporary_rows import TemporaryRows

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string(), "list": pa.list_(pa.int32())})


def _batches(begin: int, count: int) -> list[pa.RecordBatch]:
    made = [
        {"id": n, "text": None if n % 3 else f"row {n}", "list": [n]} for n in range(begin, begin + count)
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA).to_batches(max_chunksize=7)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "below" / "spill"
    file = TemporaryRows(directory)
    assert not list(directory.iterdir())
    places = [file.write(SCHEMA, _batches(begin, count)) for begin, count in ((0, 20), (20, 0), (20, 5))]
    assert list(file.read(places[0])) == _batches(0, 20)
    assert list(file.read(places[1])) == []
    assert list(file.read(places[2])) == _batches(20, 5)
    chosen = [batch.select(["list", "id"]) for batch in _batches(0, 20)]
    assert list(file.read(places[0], ["list", "id"])) == chosen


def test_its_space_is_given_back(tmp_path: Path) -> None:
    file = TemporaryRows(tmp_path)
    file.write(SCHEMA, _batches(0, 20))
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        file.write(SCHEMA, _batches(0, 20))


def test_readers_in_several_threads() -> None:
    file = TemporaryRows()
    place = file.write(SCHEMA, _batches(0, 3000))
    found: list[list[pa.RecordBatch]] = []
    readers = [threading.Thread(target=lambda: found.append(list(file.read(place)))) for _ in range(3)]
    for each in readers:
        each.start()
    later = file.write(SCHEMA, _batches(0, 10))
    for each in readers:
        each.join()
    assert found == [_batches(0, 3000)] * 3
    assert list(file.read(later)) == _batches(0, 10)
