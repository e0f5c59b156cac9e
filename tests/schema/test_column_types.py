"""The table of types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_fast import Column, Options
from pgoutput_fast.catalog.builtin_types import is_built_in, numeric_modifier
from pgoutput_fast.schema.column_types import ColumnType, column_type_of


def of(oid: int, typmod: int = -1, namespace: str | None = None, name: str | None = None) -> ColumnType:
    return column_type_of(Column("c", oid, typmod, False, namespace, name), Options())


def modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("typmod", "expected"),
    [
        (modifier(10, 2), pa.decimal128(10, 2)), (modifier(38, 38), pa.decimal128(38, 38)), (modifier(1, 0), pa.decimal128(1, 0)),
        (modifier(3, -2), pa.string()), (modifier(3, 5), pa.string()), (modifier(39, 0), pa.string()), (-1, pa.string()),
        (modifier(1000, 1000), pa.string()), (modifier(0, 0), pa.string()), (3, pa.string()), (-(2**31), pa.string()),
        (2**31 - 1, pa.string()),
    ],
)  # fmt: skip
def test_numeric_modifiers(typmod: int, expected: pa.DataType) -> None:
    assert of(1700, typmod).arrow == expected
    assert of(1231, typmod).arrow == pa.list_(expected)


def test_scale_is_signed() -> None:
    assert numeric_modifier(modifier(3, -2)) == (3, -2)
    assert numeric_modifier(modifier(1000, -1000)) == (1000, -1000)


@pytest.mark.parametrize(
    ("oid", "namespace", "name", "arrow", "unknown"),
    [
        (20001, None, None, pa.string(), True),  # never explained
        (20001, "pg_catalog", "int4", pa.int32(), False),  # a domain over int4
        (20001, "pg_catalog", "_int4", pa.list_(pa.int32()), False),  # a domain over int4[]
        (20001, "pg_catalog", "nothing_known", pa.string(), True),
        (20001, "public", "mood", pa.string(), True),
        (20001, "public", "_mood", pa.list_(pa.string()), True),
        (20001, "public", "_", pa.string(), True),
        (20001, "public", "__x", pa.list_(pa.string()), True),
        (20001, "public", "___x", pa.list_(pa.string()), True),
        (20001, "ext", "citext", pa.string(), False),
        (20001, "ext", "_citext", pa.list_(pa.string()), False),
        (20001, "public", "int4", pa.string(), True),  # only pg_catalog's is what it seems
        (23, "public", "text", pa.int32(), False),  # built in: nobody can say otherwise
    ],
)
def test_types_by_name(
    oid: int, namespace: str | None, name: str | None, arrow: pa.DataType, unknown: bool
) -> None:
    found = of(oid, -1, namespace, name)
    assert (found.arrow, found.unknown) == (arrow, unknown)


def test_an_array_of_a_known_type_wants_its_element() -> None:
    assert of(1007).element_oid == of(20001, -1, "pg_catalog", "_int4").element_oid == 23
    assert of(20001, -1, "public", "_mood").element_oid == 0


def test_what_is_built_in() -> None:
    assert is_built_in(23)
    assert is_built_in(1007)
    assert not is_built_in(20001)
