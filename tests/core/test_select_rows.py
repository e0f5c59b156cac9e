"""Copies of some rows, against what Arrow's filter gives."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast._core.columns.select_rows import select_rows

_LONG = [bytes([65 + k]) * size for k, size in enumerate((0, 1, 31, 32, 33, 63, 64, 65, 300))]

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [0, 1, -1, None]),
    (pa.int16(), [0, 1, -1, 256, None]),
    (pa.int32(), [0, 1, 1 << 24, -(1 << 31), None]),
    (pa.int64(), [0, 1, 1 << 32, -(1 << 63), None]),
    (pa.float64(), [0.0, 1.5, 1e300, None]),
    (pa.timestamp("us", "UTC"), [0, 1 << 40, None]),
    (pa.month_day_nano_interval(), [(1, 2, 3), (0, -1, 1 << 40), None]),
    (pa.decimal128(38, 2), [decimal.Decimal(0), decimal.Decimal(2) ** 70, None]),
    (pa.decimal256(60, 0), [decimal.Decimal(0), decimal.Decimal(2) ** 140, None]),
    (pa.binary(16), [bytes(range(16)), bytes(16), None]),
    (pa.binary(3), [b"abc", b"abd", None]),
    (pa.binary(), [*_LONG, None]),
    (pa.string(), [*(each.decode() for each in _LONG), "ä" * 20, None]),
    (pa.large_binary(), [*_LONG, None]),
    (pa.large_string(), [*(each.decode() for each in _LONG), None]),
    # Arrow copies the rows of these.
    (pa.null(), [None]),
    (pa.list_(pa.int32()), [[], [1], [1, None, 3], None]),
    (pa.list_(pa.int32(), 2), [[1, 2], [3, None], None]),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
    (pa.uuid(), [uuid.UUID(int=7).bytes, uuid.UUID(int=1 << 100).bytes, None]),
    (pa.json_(), ['{"a": 1}', "null", None]),
]
KINDS = pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])


def column(
    rng: np.random.Generator, kind: pa.DataType, values: list[Any], sizes: list[int]
) -> pa.ChunkedArray:
    """Random values in chunks, most of which are slices of longer ones."""
    chunks = []
    for rows in sizes:
        drawn, begin = rng.integers(0, len(values), rows + 9), int(rng.integers(0, 9))
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        array = pa.array([values[k] for k in drawn], storage)
        if storage != kind:
            array = pa.ExtensionArray.from_storage(kind, array)
        chunks.append(array.slice(begin, rows))
    return pa.chunked_array(chunks, kind)


def check(columns: list[pa.ChunkedArray], chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    (found,) = select_rows(columns, [np.flatnonzero(chosen)])
    for one, each in zip(found, columns, strict=True):
        expected = each.filter(pa.array(chosen))
        one.validate(full=True)
        assert one.type == each.type
        assert one.to_pylist() == expected.to_pylist()
        assert one.null_count == expected.null_count
        assert all(len(chunk) for chunk in one.chunks)


@KINDS
@pytest.mark.parametrize("nulls", [True, False])
def test_rows_are_those_of_a_filter(kind: pa.DataType, values: list[Any], nulls: bool) -> None:
    if not nulls:
        values = [each for each in values if each is not None] or values
    rng = np.random.default_rng([len(values), nulls])
    for share in (0.02, 0.5, 0.98):
        sizes = [int(rows) for rows in rng.integers(0, 300, 5)]
        drawn = column(rng, kind, values, sizes)
        check([drawn], rng.random(len(drawn)) < share)


@KINDS
def test_no_rows_all_rows_and_one_row(kind: pa.DataType, values: list[Any]) -> None:
    drawn = column(np.random.default_rng(3), kind, values, [7, 0, 10])
    check([drawn], np.zeros(17, np.bool_))
    check([drawn], np.ones(17, np.bool_))
    for row in range(17):
        check([drawn], np.arange(17) == row)
    assert select_rows([pa.chunked_array([], kind)], [np.empty(0, np.int64)])[0][0].type == kind


def test_columns_may_have_chunks_of_their_own() -> None:
    rng = np.random.default_rng(5)
    cuts = [[100], [40, 60], [0, 1, 99], [40, 60]]
    drawn = [column(rng, kind, values, cuts[k % 4]) for k, (kind, values) in enumerate(VALUES)]
    check(drawn, rng.random(100) < 0.5)


def test_a_chunk_of_which_all_rows_stay_is_not_copied() -> None:
    texts = pa.chunked_array([["a", "b"], ["c", "d"]])
    ((found,),) = select_rows([texts], [np.array([0, 1, 3])])
    assert found.to_pylist() == ["a", "b", "d"]
    assert found.chunk(0).buffers()[2].address == texts.chunk(0).buffers()[2].address


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 100])
def test_bytes_end_with_their_memory(kind: pa.DataType, size: int) -> None:
    """Nothing is read behind the values, and nothing is kept behind the copies. Under ASan a read behind is an error."""
    for rows in (1, 2, 40):
        values = np.random.default_rng(size).integers(0, 256, rows * size, np.uint8)
        offsets = np.arange(rows + 1, dtype=np.int32 if kind == pa.binary() else np.int64) * size
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.copy())]
        array = pa.chunked_array([pa.Array.from_buffers(kind, rows, buffers), pa.array([b"x"], kind)])
        for chosen in (np.arange(rows), np.arange(0, rows, 2), np.array([rows - 1]), np.array([rows])):
            ((found,),) = select_rows([array], [chosen])
            assert found.to_pylist() == array.take(pa.array(chosen)).to_pylist()
            for chunk in found.chunks:
                assert chunk.buffers()[2].size == sum(map(len, chunk.to_pylist()))


def test_missing_values_may_have_bytes() -> None:
    values = pa.array([b"a", b"bc", b"def"])
    hidden = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), *values.buffers()[1:]])
    ((found,),) = select_rows([pa.chunked_array([hidden])], [np.array([1, 2])])
    found.validate(full=True)
    assert found.to_pylist() == [None, b"def"]


def test_several_columns_of_several_types() -> None:
    day = pa.chunked_array([[datetime.date(2026, 1, k) for k in range(1, 9)]])
    names = pa.chunked_array([[f"n{k}" for k in range(8)]])
    (found,) = select_rows([day, names], [np.array([1, 6])])
    assert found[0].to_pylist() == [datetime.date(2026, 1, 2), datetime.date(2026, 1, 7)]
    assert found[1].to_pylist() == ["n1", "n6"]


@pytest.mark.parametrize("sizes", [[100], [40, 60], [0, 1, 99]])
def test_several_choices_are_as_each_alone(sizes: list[int]) -> None:
    rng = np.random.default_rng(sizes)
    columns = [column(rng, kind, values, sizes) for kind, values in VALUES]
    choices = [np.flatnonzero(rng.random(100) < share) for share in (0.5, 0.0, 0.1, 1.0, 0.5)]
    together = select_rows(columns, choices)
    assert len(together) == len(choices)
    for chosen, found in zip(choices, together, strict=True):
        (alone,) = select_rows(columns, [chosen])
        assert [each.to_pylist() for each in found] == [each.to_pylist() for each in alone]
        assert [len(each) for each in found] == [len(chosen)] * len(columns)
    assert select_rows(columns, []) == []


def test_rows_that_are_not_there_or_out_of_order() -> None:
    numbers = pa.chunked_array([[1, 2], [3]])
    with pytest.raises(IndexError, match="columns of 3 rows do not have row 3"):
        select_rows([numbers], [np.array([0]), np.array([0, 3])])
    for rows in ([1, 1], [2, 0], [-1, 0]):
        with pytest.raises(ValueError, match="rows must ascend from 0"):
            select_rows([numbers], [np.array(rows)])
    with pytest.raises(ValueError, match="the columns must have the same length"):
        select_rows([numbers, numbers.slice(1)], [np.array([0])])
    with pytest.raises(IndexError, match="columns of 0 rows do not have row 0"):
        select_rows([], [np.array([0])])
    assert select_rows([], [np.empty(0, np.int64)]) == [[]]


def test_a_chunk_that_is_too_large() -> None:
    """The rows of a chunk are counted with 31 bits. Nulls take no memory."""
    with pytest.raises(OverflowError, match="a chunk of 2,147,483,648 rows is too large"):
        select_rows([pa.chunked_array([pa.nulls(1 << 31)])], [np.array([0])])
