"""The rows of each key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.key_groups import key_groups
from support.histories import VALUES
from support.oracle import comparable

FAR = [-(1 << 63), 0, (1 << 63) - 1]


def check(keys: list[Any], columns: list[pa.ChunkedArray]) -> None:
    found = key_groups(columns)
    rows: dict[str, list[int]] = {}
    previous = []
    for row, key in enumerate(keys):
        before = rows.setdefault(repr(comparable(key)), [])
        previous.append(before[-1] if before else -1)
        before.append(row)
    assert found.previous.tolist() == previous
    ends = sorted(zip(found.first.tolist(), found.last.tolist(), strict=True))
    assert ends == sorted((each[0], each[-1]) for each in rows.values())


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [5],
        [5, 5],
        [1, 2, 3],
        [3, 1, 2, 1, 3, 3],
        [-5, 7, -5],
        FAR,
        [*FAR, *FAR],
        [*FAR, 0, 1],
        FAR[::-1],
        [0, 1 << 61, 0, 5, 1 << 61],
    ],
)
def test_integers(keys: list[int]) -> None:
    check(keys, [pa.chunked_array([pa.array(keys, pa.int64())])])
    check(keys, [pa.chunked_array([pa.array(keys[:1], pa.int64()), pa.array(keys[1:], pa.int64())])])


@pytest.mark.parametrize("kind", VALUES)
def test_other_types(kind: str) -> None:
    arrow, values = VALUES[kind]
    for keys in (values, [*values, *reversed(values)]):
        check(keys, [pa.chunked_array([pa.array(keys, arrow)])])


def test_small_integers() -> None:
    keys = [32767, -32768, 32767, 0]
    check(keys, [pa.chunked_array([pa.array(keys, pa.int16())])])


def test_several_columns() -> None:
    keys = [(1, "a"), (1, "b"), (2, "a"), (1, "a"), (2, "a")]
    check(keys, [pa.chunked_array([pa.array(list(column))]) for column in zip(*keys, strict=True)])
