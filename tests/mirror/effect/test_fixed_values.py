"""Values of fixed size as integers: equal exactly if the values are."""

from __future__ import annotations

import itertools
import uuid

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.mirror.effect.fixed_values import fixed_values, is_fixed, validity
from support.histories import VALUES
from support.oracle import comparable

FIXED = [kind for kind, (arrow, _) in VALUES.items() if is_fixed(arrow)]


def test_which_types_are_fixed() -> None:
    assert FIXED == ["int", "decimal", "timestamp", "float", "date", "bool", "real"]
    assert is_fixed(pa.binary(16))
    assert not any(map(is_fixed, (pa.binary(3), pa.large_string(), pa.null(), pa.struct([]))))


@pytest.mark.parametrize("kind", FIXED)
def test_values_and_parts_of_arrays(kind: str) -> None:
    arrow, values = VALUES[kind]
    values = [*values, None, *values]
    array = pa.array(values, arrow)
    for part, expected in ((array, values), (array[1:-2], values[1:-2]), (array[:2][:0], [])):
        found = list(zip(*(each.tolist() for each in fixed_values(part)), strict=True))
        assert validity(part).tolist() == [each is not None for each in expected]
        keys = list(zip(found, validity(part).tolist(), strict=True))
        for (one, its), (other, others) in itertools.product(zip(expected, keys, strict=True), repeat=2):
            assert (comparable(one) == comparable(other)) == (its == others), (one, other)


def test_what_stands_behind_a_null_does_not_count() -> None:
    mask = pa.py_buffer(np.packbits([True, False, True], bitorder="little"))
    array = pa.Array.from_buffers(pa.int32(), 3, [mask, pa.py_buffer(np.array([7, 8, 9], np.int32))])
    assert [each.tolist() for each in fixed_values(array)] == [[7, 0, 9]]


def test_sixteen_bytes() -> None:
    one, other = uuid.UUID(int=1 << 100), uuid.UUID(int=1)
    found = fixed_values(pa.array([one.bytes, other.bytes, one.bytes], pa.binary(16)))
    assert [each.tolist()[0] == each.tolist()[2] for each in found] == [True, True]
    assert [each.tolist()[0] == each.tolist()[1] for each in found] == [False, False]
