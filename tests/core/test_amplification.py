"""What a value becomes is bounded by what it takes on the wire: the table of docs/types.md, and what is left out."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.extensions import HALFVEC, SPARSEVEC
from cells.nested import TYPES as OF_EXTENSIONS
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast.catalog.relations import Column
from pgoutput_fast.catalog.user_types import TypeField, UserType, UserTypes
from pgoutput_fast.encode import UNCHANGED, Binary, ColumnSpec, RelationSpec, Writer
from pgoutput_fast.schema.column_types import column_type_of
from reference import nested as reference_nested
from support.paths import DOCS

LONGEST, PER_BYTE = 147_460, 32
PAIR, PAIRS, SPANS = 20_000, 20_001, 20_002
TYPES = UserTypes(
    [
        UserType(PAIR, "public", "pair", "composite", fields=(TypeField("a", 1700), TypeField("b", 23))),
        UserType(PAIRS, "public", "_pair", "array", of=PAIR),
        UserType(SPANS, "public", "_numrange", "array", of=3906),
    ]
)


def numeric(weight: int, scale: int = 0, digits: int = 1) -> bytes:
    return struct.pack(f">HhHH{digits}H", digits, weight, 0, scale, *[9999] * digits)


def array(oid: int, *items: bytes | None) -> bytes:
    parts = [struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each for each in items]
    return struct.pack(">iiIii", 1, 0, oid, len(items), 1) + b"".join(parts)


def pair(a: bytes) -> bytes:
    return struct.pack(">iIi", 2, 1700, len(a)) + a + struct.pack(">Iii", 23, 4, 7)


def span(bound: bytes) -> bytes:
    return struct.pack(">Bi", 2 | 16, len(bound)) + bound


def spans(*ranges: bytes) -> bytes:
    return struct.pack(">i", len(ranges)) + b"".join(struct.pack(">i", len(each)) + each for each in ranges)


# Shape of a column -> its type and how numerics become a value of it.
NESTED: dict[str, tuple[int, Callable[..., bytes]]] = {
    "numeric[]": (1231, lambda *each: array(1700, *each)),
    "numrange[]": (3907, lambda *each: array(3906, *map(span, each))),
    "nummultirange": (4532, lambda *each: spans(*map(span, each))),
    "pair[]": (PAIRS, lambda *each: array(PAIR, *map(pair, each))),
}


def table(oid: int) -> RelationSpec:
    return RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("v", oid)))


def decode(oid: int, cells: list[Any], **options: Any) -> pgo.Decoded:
    writer = Writer()
    payloads = writer.begin(7, 100, 0)
    for k, cell in enumerate(cells):
        payloads += writer.change(table(oid), "insert", new=[str(k), cell])
    return pgo.Decoder(pgo.Options(**options), catalog=pgo.Catalog(types=TYPES)).decode(payloads)


@pytest.mark.parametrize("shape", NESTED)
def test_numerics_inside_of_values_become_bounded_text(shape: str) -> None:
    oid, made = NESTED[shape]
    cell = made(*[numeric(32767)] * 500)  # some 65 MB of text
    sound = made(numeric(3))
    out = decode(oid, [Binary(sound), Binary(cell), None, Binary(sound)])
    assert pa.total_allocated_bytes() < 1 << 30
    (each,) = out.changes
    each.batch.validate(full=True)
    assert each.batch.nbytes < 1 << 20
    assert each.batch.column("v").is_valid().to_pylist() == [True, False, False, True]
    assert each.batch.column("_unrepresentable").to_pylist() == [None, ["v"], None, None]
    (reject,) = out.rejects.to_pylist()
    assert (reject["column"], reject["raw"]) == ("v", cell)
    assert "too many digits" in reject["reason"]
    with pytest.raises(pgo.DecodeError, match=r"column 'v'.*too many digits"):
        decode(oid, [Binary(cell)], unrepresentable="raise")


@pytest.mark.parametrize("shape", NESTED)
def test_what_the_bound_leaves_is_there(shape: str) -> None:
    """One numeric of any length, and any number of such as have a few hundred digits."""
    oid, made = NESTED[shape]
    cells = [
        made(numeric(32767)),
        made(numeric(32767, 16383)),
        made(*[numeric(99)] * 3000),
        made(*[numeric(-1, 400)] * 3000),
    ]
    # Of as many digits as are sent, all: they take half a byte each.
    cells.append(made(*[numeric(499, 0, 500)] * 300))
    out = decode(oid, [Binary(cell) for cell in cells])
    assert out.rejects.num_rows == 0
    assert out.changes[0].batch.column("v").null_count == 0


@pytest.mark.parametrize(("scale", "kept"), [(2, True), (3, False)])
def test_the_bound_is_what_the_docs_say(scale: int, kept: bool) -> None:
    """What the headers announce, a point and all: 131,073 of the one, and of the other what is left, or one more."""
    cell = array(1700, numeric(32767), numeric(4479, scale))
    assert LONGEST + PER_BYTE * len(cell) == 131_073 + 4 * 4480 + 1 + 2
    _, issues = convert(column_type_of(Column("v", 1231), pgo.Options()), [cell], True)
    assert (issues == []) == kept


@pytest.mark.parametrize("shape", [shape for shape in NESTED if shape != "pair[]"])
def test_the_reference_decoder_draws_the_same_line(shape: str) -> None:
    oid, made = NESTED[shape]
    kind = column_type_of(Column("v", oid), pgo.Options())
    for weight in (100, 120, 150, 180, 200, 300, 500):
        cell = made(*[numeric(weight, scale) for scale in range(400)])
        _, issues = convert(kind, [cell], True)
        assert (
            bool(issues)
            == reference_nested.convert(reference_nested.resolve(oid, -1), True, cell).unrepresentable
        )


def test_plain_numerics_and_text_are_as_long_as_they_are() -> None:
    long = "9" * 4 + "0" * 131_068
    out = decode(1700, [Binary(numeric(32767)), long])
    assert out.changes[0].batch.column("v").to_pylist() == [long, long]
    text = "{" + ",".join([long] * 40) + "}"
    out = decode(1231, [text])
    assert out.rejects.num_rows == 0
    assert out.changes[0].batch.column("v").to_pylist() == [[long] * 40]


def test_malformed_values_that_announce_much_are_malformed() -> None:
    cell = NESTED["pair[]"][1](*[numeric(32767)] * 50)
    with pytest.raises(pgo.DecodeError, match="column 'v'"):
        decode(PAIRS, [Binary(cell[:-4])])
    out = decode(PAIRS, [Binary(cell[:-4])], on_error="quarantine")
    assert out.rejects.num_rows == 1
    assert not out.changes or out.changes[0].batch.num_rows == 0


# ---- the table -----------------------------------------------------------------------------------------------------


def worst(oid: int, cell: bytes, binary: bool = True, types: UserTypes = TYPES) -> float:
    """Bytes of Arrow buffers that a byte of a value becomes."""
    array, issues = convert(column_type_of(Column("v", oid), pgo.Options(), types), [cell] * 20, binary)
    assert not any(reason for _, reason, _ in issues)
    return float(array.nbytes) / (20 * (len(cell) + 4))


TINY = struct.pack(">d", -2.2250738585072014e-308)
# PostgreSQL type -> its oid and a value that grows as much as any does.
VALUES: dict[str, tuple[int, bytes]] = {
    "bit, varbit": (1562, struct.pack(">i", 80_000) + bytes(10_000)),
    "bytea and unknown types": (99_999, bytes(10_000)),
    "path, polygon": (604, struct.pack(">i", 1000) + TINY * 2000),
    "line, lseg, box, circle": (603, TINY * 4),
    "tsvector": (3614, struct.pack(">i", 1) + b"a\0" + struct.pack(">h", 255) + struct.pack(">H", 0xFFFF) * 255),
    "tsquery": (3615, struct.pack(">i", 4001) + b"\2\4\x80\0" * 2000 + b"\1\x0f\1\0" * 2001),
    "halfvec": (HALFVEC, struct.pack(">HH", 1000, 0) + bytes(2000)),
    "sparsevec, cube": (SPARSEVEC, struct.pack(">iii", (1 << 31) - 1, 1000, 0) + struct.pack(">1000i", *range((1 << 31) - 1001, (1 << 31) - 1))
                        + struct.pack(">f", -1.17549435e-38) * 1000),
    "macaddr, macaddr8, tid": (774, b"\xff" * 8),
    "inet, cidr": (869, bytes([3, 128, 0, 16]) + b"\xff" * 16),
    "txid_snapshot": (5038, struct.pack(">iqq1000q", 1000, 1 << 62, (1 << 62) + 1000, *range(1 << 62, (1 << 62) + 1000))),
    "int2vector, oidvector": (22, array(21, *[struct.pack(">h", -32768)] * 1000).replace(struct.pack(">ii", 1000, 1), struct.pack(">ii", 1000, 0))),
    "lists of nulls": (1231, array(1700, *[None] * 10_000)),
    "lists of oid, interval, decimal": (1028, array(26, *[bytes(4)] * 10_000)),
    "multiranges": (4532, spans(*[struct.pack(">B", 24)] * 1000)),
    "numerics in lists, ranges and composites": (1231, array(1700, *[numeric(107)] * 10_000)),
}  # fmt: skip


def documented() -> dict[str, float]:
    text = (DOCS / "types.md").read_text()
    section = text.partition("## How much a value becomes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) \|", section, re.MULTILINE)
    return {name: float(most) for name, most in rows}


def test_the_table_has_what_is_tried() -> None:
    assert {*documented()} == {*VALUES}


@pytest.mark.parametrize("name", VALUES)
def test_a_byte_becomes_no_more_than_the_table_says(name: str) -> None:
    oid, cell = VALUES[name]
    found = worst(oid, cell, types=OF_EXTENSIONS if oid in OF_EXTENSIONS else TYPES)
    most = documented()[name]
    assert 0.5 * most < found <= most, found


# ---- offsets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "most"), [("batch_bytes", 1 << 30), ("batch_rows", 1 << 26)])
def test_batches_beyond_what_offsets_reach_are_refused(name: str, most: int) -> None:
    assert getattr(pgo.Options(**{name: most}), name) == most
    with pytest.raises(ValueError, match=rf"{name} must be an int of at most {most}"):
        pgo.Options(**{name: most + 1})


def test_names_of_unsent_columns_close_a_batch() -> None:
    """One byte on the wire, a whole name in `_unchanged`."""
    columns = tuple(ColumnSpec(f"{k:04}" + "x" * 59, 25) for k in range(1000))
    wide = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), *columns))
    writer = Writer()
    payloads = writer.begin(7, 100, 0) + writer.change(wide, "insert", new=["1", *["x"] * 1000])
    change = writer.change(wide, "update", new=["1", *[UNCHANGED] * 1000])[-1]
    out = pgo.decode(payloads + [change] * 2000, options=pgo.Options(batch_bytes=1 << 22))
    assert sum(each.batch.num_rows for each in out.changes) == 2001
    assert max(each.batch.column("_unchanged").nbytes for each in out.changes) < 4 * (1 << 22)
