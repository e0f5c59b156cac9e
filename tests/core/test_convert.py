"""Stage 4, convert: every type in both formats; what has no Arrow form; what no server sends."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest

from cells.every_type import SCALARS, Cells, numeric
from cells.nested import DESCRIBED, EVERY, TYPES
from pgoutput_fast import Column, Options
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast.schema.column_types import ColumnType, column_type_of
from reference import nested as reference

FIRST_UNREPRESENTABLE, FIRST_NOTED = 64, 128
FORMATS = [False, True]


def type_of(cells: Cells, **options: Any) -> ColumnType:
    return column_type_of(Column("c", cells.oid, cells.typmod), Options(**options), TYPES)


def integral(values: pa.Array) -> list[Any]:
    """Python values; days and microseconds where Python has no such date."""
    kind = values.type
    if pa.types.is_list(kind):
        inner = integral(values.flatten())
        ends = values.offsets.to_pylist()
        spans = zip(ends[:-1], ends[1:], values.is_valid().to_pylist(), strict=True)
        return [inner[a - ends[0] : b - ends[0]] if valid else None for a, b, valid in spans]
    if pa.types.is_struct(kind):
        fields = [integral(values.field(k)) for k in range(kind.num_fields)]
        names = [field.name for field in kind]
        return [
            {name: field[k] for name, field in zip(names, fields, strict=True)} if valid else None
            for k, valid in enumerate(values.is_valid().to_pylist())
        ]
    if pa.types.is_date(kind):
        return values.cast(pa.int32()).to_pylist()
    if pa.types.is_interval(kind):
        return [None if value is None else tuple(value) for value in values.to_pylist()]
    if pa.types.is_temporal(kind):
        return values.cast(pa.int64()).to_pylist()
    return values.to_pylist()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


def oracle(cells: Cells, raw: bytes, binary: bool) -> reference.Value | None:
    """What the reference decoder says; None for malformed."""
    try:
        return reference.convert(reference.resolve(cells.oid, cells.typmod, None, DESCRIBED), binary, raw)
    except reference.MalformedError:
        return None


@pytest.mark.parametrize("cells", EVERY.values(), ids=EVERY.keys())
def test_text_and_binary_are_the_same_value(cells: Cells) -> None:
    kind = type_of(cells)
    texts, binaries = zip(*cells.both, strict=True) if cells.both else ((), ())
    from_text, text_issues = convert(kind, list(texts), False)
    from_binary, binary_issues = convert(kind, list(binaries), True)
    from_text.validate(full=True)
    assert [code for _, code, _ in text_issues + binary_issues if code < FIRST_NOTED] == []
    assert same(integral(from_text), integral(from_binary))
    expected = [oracle(cells, raw, False) for raw in texts]
    assert same(integral(from_text), [value.value if value else "malformed" for value in expected])


@pytest.mark.parametrize("binary", FORMATS, ids=["text", "binary"])
@pytest.mark.parametrize("cells", EVERY.values(), ids=EVERY.keys())
def test_many_equal_cells(cells: Cells, binary: bool) -> None:
    """A converter reserves enough memory for the longest value: sanitizers see a write beyond it here."""
    kind = type_of(cells)
    for raw in [pair[binary] for pair in cells.both] + (cells.binary if binary else cells.text):
        if len(raw) > 100:
            continue
        got, issues = convert(kind, [raw] * 1000, binary)
        got.validate(full=True)
        assert not [code for _, code, _ in issues if code < FIRST_UNREPRESENTABLE], raw
        assert got.slice(0, 999).equals(got.slice(1)) or str(got[0]) == str(got[999]), raw


@pytest.mark.parametrize("binary", FORMATS, ids=["text", "binary"])
@pytest.mark.parametrize("cells", EVERY.values(), ids=EVERY.keys())
def test_each_cell_alone_and_among_others(cells: Cells, binary: bool) -> None:
    """As the reference decoder has it, whatever stands around a cell."""
    kind = type_of(cells)
    good = [pair[binary] for pair in cells.both]
    good += cells.binary if binary else cells.text
    odd = cells.unrepresentable_binary if binary else cells.unrepresentable_text
    wrong = cells.malformed_binary if binary else cells.malformed_text
    for raw, expected in (
        [(r, "good") for r in good] + [(r, "odd") for r in odd] + [(r, "wrong") for r in wrong]
    ):
        value = oracle(cells, raw, binary)
        verdict = "wrong" if value is None else "odd" if value.unrepresentable else "good"
        assert verdict == expected, raw
        for around in ([], [None], [good[0]] if good else []):
            got, issues = convert(kind, [*around, raw, *around], binary)
            got.validate(full=True)
            codes = [(code, inside) for row, code, inside in issues if row == len(around)]
            assert len(codes) == (0 if value and not value.problem else 1), raw
            if expected == "wrong":
                assert codes[0][0] < FIRST_UNREPRESENTABLE, raw
            else:
                assert value is not None
                assert same(integral(got)[len(around)], value.value), raw
                if expected == "odd":
                    assert FIRST_UNREPRESENTABLE <= codes[0][0] < FIRST_NOTED, raw
                    assert codes[0][1] == (value.value is not None), raw
            assert len(got) == 2 * len(around) + 1


@pytest.mark.parametrize("binary", FORMATS, ids=["text", "binary"])
@pytest.mark.parametrize("cells", EVERY.values(), ids=EVERY.keys())
def test_long_columns_with_nulls(cells: Cells, binary: bool) -> None:
    """Validity and offsets over many bytes of bits."""
    good = [pair[binary] for pair in cells.both] + [None]
    values = [good[i * 7 % len(good)] for i in range(1003)]
    got, _ = convert(type_of(cells), values, binary)
    got.validate(full=True)
    expected = [None if v is None else oracle(cells, v, binary) for v in values]
    assert same(integral(got), [None if v is None else v.value for v in expected])
    assert got.null_count == sum(value is None for value in values)


@pytest.mark.parametrize("binary", FORMATS, ids=["text", "binary"])
@pytest.mark.parametrize("cells", EVERY.values(), ids=EVERY.keys())
def test_every_truncation_and_every_changed_byte(cells: Cells, binary: bool) -> None:
    """Whatever the bytes, the answer is the reference decoder's."""
    kind = type_of(cells)
    variants: list[bytes] = []
    for pair in cells.both:
        raw = pair[binary]
        if len(raw) > 200:
            continue
        variants += [raw[:n] for n in range(len(raw))]
        variants += [
            raw[:i] + bytes([raw[i] ^ flip]) + raw[i + 1 :]
            for i in range(len(raw))
            for flip in (1, 16, 128, 255)
        ]
    got, issues = convert(kind, variants, binary)
    got.validate(full=True)
    by_row = {row: (code, inside) for row, code, inside in issues}
    assert len(by_row) == len(issues)
    values = integral(got)
    for row, raw in enumerate(variants):
        value = oracle(cells, raw, binary)
        code, _ = by_row.get(row, (None, False))
        if value is None:
            assert code is not None, raw
            assert code < FIRST_UNREPRESENTABLE, raw
            continue
        assert same(values[row], value.value), raw
        assert (code is not None) == bool(value.problem), raw
        if code is not None:
            assert (FIRST_UNREPRESENTABLE <= code < FIRST_NOTED) == value.unrepresentable, raw


@pytest.mark.parametrize("name", ["numeric", "numeric(10,2)"])
def test_numeric_as_other_types(name: str) -> None:
    raw = [
        (b"1.5", numeric(0, 0, 1, 1, 5000)),
        (b"-12345", numeric(1, 0x4000, 0, 1, 2345)),
        (b"NaN", numeric(0, 0xC000, 0)),
    ]
    floats, issues = convert(type_of(SCALARS["numeric"], numeric="float64"), [t for t, _ in raw], False)
    again, more = convert(type_of(SCALARS["numeric"], numeric="float64"), [b for _, b in raw], True)
    assert issues == more == []
    assert str(floats.to_pylist()) == str(again.to_pylist()) == "[1.5, -12345.0, nan]"
    decimals, issues = convert(
        type_of(SCALARS["numeric"], numeric=pa.decimal128(20, 3)), [b for _, b in raw], True
    )
    assert [str(v) for v in decimals.to_pylist()] == ["1.500", "-12345.000", "None"]
    assert [row for row, _, _ in issues] == [2]
    for wrong in (b"1e5", b"01", b"-0", b"", b"nan"):
        _, issues = convert(type_of(SCALARS["numeric"], numeric="float64"), [wrong], False)
        assert issues[0][1] < FIRST_UNREPRESENTABLE
    _, issues = convert(type_of(SCALARS["numeric"], numeric="float64"), [b"1" + b"0" * 400], False)
    assert issues[0][1] >= FIRST_UNREPRESENTABLE


@pytest.mark.parametrize("option", ["string", "fixed_size_binary", "arrow.uuid"])
def test_uuid_options(option: str) -> None:
    cells = SCALARS["uuid"]
    kind = type_of(cells, uuid=option)
    from_text, issues = convert(kind, [text for text, _ in cells.both] + [None], False)
    from_binary, more = convert(kind, [binary for _, binary in cells.both] + [None], True)
    assert issues == more == []
    assert from_text.equals(from_binary)
    assert from_text.type == kind.arrow
    for wrong in cells.malformed_text:
        assert convert(kind, [wrong], False)[1][0][1] < FIRST_UNREPRESENTABLE


def test_nan_keeps_no_payload() -> None:
    got, _ = convert(type_of(SCALARS["float8"]), [struct.pack(">Q", 0xFFF8000000000123)], True)
    assert struct.pack("<d", got[0].as_py()) == struct.pack("<d", math.nan)
