"""Which files are joined: few stay, one effect joins little, and rows are not written again and again. And rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.merge.compaction import to_compact
from pgoutput_fast.tables.data_files import by_bounds
from pgoutput_fast.tables.joining import to_join
from pgoutput_fast.tables.table import DataFile, MarkedRows, Version
from support import numbered
from support.current_tables import delta_table

_FILE_BYTES = 32 << 20


def _version(sizes: list[int]) -> Version:
    files = [DataFile(f"{k}.parquet", 1, size) for k, size in enumerate(sizes)]
    return Version(1, 1, pa.schema({"text": pa.float64()}), files, lambda _: (pa.nulls(0), pa.nulls(0)))


def _joined(sizes: list[int], file_bytes: int = _FILE_BYTES) -> list[int]:
    return [sizes[k] for k in _to_join(sizes, file_bytes)]


def _to_join(sizes: list[int], file_bytes: int = _FILE_BYTES) -> Sequence[int]:
    version = _version(sizes)
    return to_join(version, file_bytes, partial(by_bounds, version))


@pytest.mark.parametrize(
    "sizes", [[], [1], [0] * 8, [100_000] * 8, [_FILE_BYTES] * 100, [_FILE_BYTES // 8 + 1] * 100]
)
def test_nothing_to_join(sizes: list[int]) -> None:
    assert _joined(sizes) == []


def test_a_class_takes_shorter_files_along() -> None:
    longer, shorter = [3 << 20] * 8, [100_000] * 9
    assert _joined([*longer, *shorter]) == shorter
    assert _joined([*longer, 4 << 20, *shorter]) == [*longer, 4 << 20, *shorter]
    assert _joined([*longer, (4 << 20) + 1, *shorter]) == shorter


def test_one_effect_joins_little() -> None:
    """Although a delete has left a thousand files that are short now."""
    sizes = [3 << 20] * 1000
    assert 2 <= len(_joined(sizes)) <= 2 * _FILE_BYTES // (3 << 20)
    assert _joined([1] * 9, 8) == [1] * 9


@pytest.mark.parametrize("seed", range(4))
def test_a_long_stream_of_short_files(seed: int) -> None:
    dice = np.random.default_rng(seed)
    sizes: list[int] = []
    came = written = 0
    for size in np.exp(dice.uniform(np.log(5_000), np.log(2_000_000), 4_000)).astype(int).tolist():
        joined = _to_join(sizes)
        whole = size + sum(sizes[k] for k in joined)
        assert whole - size <= 2 * _FILE_BYTES
        sizes = [each for k, each in enumerate(sizes) if k not in set(joined)]
        # A file that would be too long becomes several.
        parts, rest = divmod(whole, _FILE_BYTES)
        sizes += [_FILE_BYTES] * parts + [rest] * (rest > 0)
        came, written = came + size, written + whole
        assert sum(each <= _FILE_BYTES // 8 for each in sizes) <= 3 * 9
    assert written <= 3 * came


@pytest.mark.parametrize(("most", "wanted"), [(None, [3, 5, 2]), (2, [3, 5]), (1, [3]), (0, [3])])
def test_files_that_are_rewritten(most: int | None, wanted: list[int], tmp_path: Path) -> None:
    """Those with the most marks, up to a number, and those with too many."""
    marks = [0, 100, 101, 201, 50, 200, 0]
    files = [
        DataFile(f"{k}.parquet", 1000, _FILE_BYTES, MarkedRows(None, np.arange(count)) if count else None)
        for k, count in enumerate(marks)
    ]
    files.append(DataFile("of another program", None, _FILE_BYTES, MarkedRows(None, np.arange(500))))  # type: ignore[arg-type]
    version = Version(1, 1, numbered.SCHEMA, files, lambda _: (pa.nulls(8), pa.nulls(8)))
    table = delta_table(tmp_path, "t", merge="on_read").table
    units = to_compact(table, version, most)
    assert [[file.name for file in unit.files] for unit in units] == [[f"{k}.parquet"] for k in wanted]


def test_joined_files_are_not_rewritten_as_well(tmp_path: Path) -> None:
    files = [DataFile(f"{k}.parquet", 100, 1000, MarkedRows(None, np.arange(50))) for k in range(9)]
    version = Version(1, 1, numbered.SCHEMA, files, lambda _: (pa.nulls(9), pa.nulls(9)))
    table = delta_table(tmp_path, "t", merge="on_read").table
    (unit,) = to_compact(table, version)
    assert len(unit.files) == 9
