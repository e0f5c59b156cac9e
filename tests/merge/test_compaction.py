"""Which short files an effect joins: few stay, one effect joins little, and rows are not written again and again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.merge.compaction import to_join
from pgoutput_fast.tables.table import DataFile, Version

_FILE_BYTES = 32 << 20


def _version(sizes: list[int]) -> Version:
    files = [DataFile(f"{k}.parquet", 1, size) for k, size in enumerate(sizes)]
    return Version(1, 1, pa.schema({"text": pa.float64()}), files, lambda _: (pa.nulls(0), pa.nulls(0)))


def _joined(sizes: list[int], file_bytes: int = _FILE_BYTES) -> list[int]:
    return [sizes[k] for k in to_join(_version(sizes), file_bytes)]


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
        joined = to_join(_version(sizes), _FILE_BYTES)
        whole = size + sum(sizes[k] for k in joined)
        assert whole - size <= 2 * _FILE_BYTES
        sizes = [each for k, each in enumerate(sizes) if k not in set(joined)]
        # A file that would be too long becomes several.
        parts, rest = divmod(whole, _FILE_BYTES)
        sizes += [_FILE_BYTES] * parts + [rest] * (rest > 0)
        came, written = came + size, written + whole
        assert sum(each <= _FILE_BYTES // 8 for each in sizes) <= 3 * 9
    assert written <= 3 * came
