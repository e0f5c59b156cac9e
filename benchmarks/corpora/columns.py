"""Columns of generated values, with their cells in PostgreSQL's text and binary formats.

Values are formatted one column at a time, so that a corpus of millions of cells takes only seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast import TypeField, UserType, UserTypes
from pgoutput_fast.catalog.user_types import NO_TYPES

__all__ = [
    "TYPES",
    "Cells",
    "ColumnKind",
    "Rng",
    "big_endian",
    "blanks",
    "bytea",
    "code",
    "fixed_width",
    "integer",
    "join",
    "long_text",
    "numeric",
    "numeric_as_string",
    "numeric_typmod",
    "printed",
    "short_text",
    "sized",
]

Rng = np.random.Generator

# From Unix's epoch to PostgreSQL's epoch, 2000-01-01.
EPOCH_DAYS = 10957
EPOCH_MICROS = EPOCH_DAYS * 86_400_000_000


@dataclass(frozen=True)
class Cells:
    """One column in three forms, with the same nulls.

    Attributes:
        values: the expected result of decoding.
        text, binary: `pa.binary` arrays with the bytes of the cells in each format.
    """

    values: pa.Array
    text: pa.Array
    binary: pa.Array

    def with_nulls(self, rng: Rng, share: float) -> Cells:
        """A copy in which about `share` of the cells are null."""
        null = pa.array(rng.random(len(self.values)) < share)
        return Cells(*(pc.if_else(null, pa.scalar(None, each.type), each) for each in self.arrays))

    @property
    def arrays(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        return self.values, self.text, self.binary


@dataclass(frozen=True)
class ColumnKind:
    """A type for columns: its oid and typmod, a function that makes `n` cells, and the user-defined types it needs."""

    oid: int
    make: Callable[[Rng, int], Cells]
    typmod: int = -1
    types: UserTypes = NO_TYPES


def fixed_width(matrix: np.ndarray[Any, Any]) -> pa.Array:
    """The rows of a 2-d uint8 array as a `pa.binary` array."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    data = np.ascontiguousarray(matrix)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def join(*parts: Any) -> pa.Array:
    """Joins the bytes of the parts, row by row. A part that is None adds nothing."""
    return pc.binary_join_element_wise(
        *(pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts),
        pa.scalar(b"", pa.binary()),
        null_handling="skip",
    )


def big_endian(values: np.ndarray[Any, Any], code: str) -> pa.Array:
    wide = values.astype(code)
    return fixed_width(wide.view(np.uint8).reshape(len(wide), wide.itemsize))


def printed(values: pa.Array) -> pa.Array:
    """Values as Arrow prints them. For most types PostgreSQL prints the same."""
    return values.cast(pa.string()).cast(pa.binary())


def _mixed(rng: Rng, n: int, bits: int) -> np.ndarray[Any, Any]:
    """Integers of all lengths up to `bits` bits, a tenth of them negative."""
    magnitude = rng.integers(0, 2**63, n, dtype=np.int64) >> rng.integers(63 - bits, 63, n)
    return np.where(rng.random(n) < 0.1, -magnitude, magnitude)


def integer(arrow: pa.DataType, code: str, bits: int) -> Callable[[Rng, int], Cells]:
    """Integers of all lengths up to `bits` bits."""

    def make(rng: Rng, n: int) -> Cells:
        numbers = _mixed(rng, n, bits)
        values = pa.array(numbers).cast(arrow)
        return Cells(values, printed(values), big_endian(numbers, code))

    return make


def _serial(rng: Rng, n: int) -> Cells:
    numbers = np.arange(1, n + 1, dtype=np.int64) + 9_000_000
    return Cells(pa.array(numbers), printed(pa.array(numbers)), big_endian(numbers, ">i8"))


def _oid(rng: Rng, n: int) -> Cells:
    numbers = rng.integers(0, 2**32, n, dtype=np.int64)
    return Cells(pa.array(numbers), printed(pa.array(numbers)), big_endian(numbers, ">u4"))


def _float8(rng: Rng, n: int) -> Cells:
    # Between 1 and 10^6: printed without an exponent, mostly with 15 to 17 digits.
    numbers = np.exp(rng.random(n) * np.log(1e6)) * np.where(rng.random(n) < 0.3, -1, 1)
    return Cells(pa.array(numbers), printed(pa.array(numbers)), big_endian(numbers, ">f8"))


def _float4(rng: Rng, n: int) -> Cells:
    numbers = np.exp(rng.random(n) * np.log(1e5)).astype(np.float32)
    return Cells(pa.array(numbers), printed(pa.array(numbers)), big_endian(numbers, ">f4"))


def _numeric_parts(rng: Rng, n: int, bits: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """numeric(12,2) of up to `bits` bits without the point: the decimals, and their cells."""
    cents = _mixed(rng, n, bits)
    words = np.stack([cents, cents >> 63], axis=1)  # an Arrow decimal has 128 bits, the low half first
    values = pa.Array.from_buffers(pa.decimal128(12, 2), n, [None, pa.py_buffer(words)])
    whole, fraction = np.divmod(np.abs(cents), 100)
    groups = [whole // 10**8, whole // 10**4 % 10**4, whole % 10**4, fraction * 100]
    used = np.stack([group != 0 for group in groups])
    first = np.where(used.any(0), used.argmax(0), 4)
    last = np.where(used.any(0), 3 - used[::-1].argmax(0), 3)
    header = np.empty((n, 4), ">i2")
    header[:, 0] = last - first + 1
    header[:, 1] = np.where(first == 4, 0, 2 - first)
    header[:, 2] = np.where(cents < 0, 0x4000, 0)
    header[:, 3] = 2
    digits = [
        pc.if_else(pa.array((first <= k) & (k <= last)), big_endian(group, ">i2"), pa.scalar(b""))
        for k, group in enumerate(groups)
    ]
    return values, printed(values), join(fixed_width(header.view(np.uint8).reshape(n, 8)), *digits)


def numeric(bits: int) -> Callable[[Rng, int], Cells]:
    """numeric(12,2), at most 36 bits without the point."""
    return lambda rng, n: Cells(*_numeric_parts(rng, n, bits))


def numeric_as_string(bits: int) -> Callable[[Rng, int], Cells]:
    """The same numbers in a column of numeric, which become text."""

    def make(rng: Rng, n: int) -> Cells:
        values, text, binary = _numeric_parts(rng, n, bits)
        return Cells(values.cast(pa.string()), text, binary)

    return make


def _bool(rng: Rng, n: int) -> Cells:
    truth = rng.random(n) < 0.7
    text = fixed_width(np.where(truth, ord("t"), ord("f")).astype(np.uint8).reshape(n, 1))
    return Cells(pa.array(truth), text, fixed_width(truth.astype(np.uint8).reshape(n, 1)))


def _date(rng: Rng, n: int) -> Cells:
    days = rng.integers(5_000, 22_000, n).astype(np.int32)
    values = pa.array(days).cast(pa.date32())
    return Cells(values, printed(values), big_endian(days - EPOCH_DAYS, ">i4"))


def _micros(rng: Rng, n: int, below: int) -> np.ndarray[Any, Any]:
    micros = rng.integers(0, below, n, dtype=np.int64)
    # A few values have no fraction, like values from date_trunc.
    return np.where(rng.random(n) < 0.05, micros // 1_000_000 * 1_000_000, micros)


def _without_zeros(values: pa.Array) -> pa.Array:
    """Removes zeros at the end of a fraction, and a point at the end, as PostgreSQL does."""
    return pc.utf8_rtrim(pc.utf8_rtrim(values.cast(pa.string()), "0"), ".").cast(pa.binary())


def _time(rng: Rng, n: int) -> Cells:
    micros = _micros(rng, n, 86_400_000_000)
    values = pa.array(micros).cast(pa.time64("us"))
    return Cells(values, _without_zeros(values), big_endian(micros, ">i8"))


def _timestamp(zone: str | None) -> Callable[[Rng, int], Cells]:
    def make(rng: Rng, n: int) -> Cells:
        micros = 1_500_000_000_000_000 + _micros(rng, n, 300_000_000_000_000)
        values = pa.array(micros).cast(pa.timestamp("us"))
        text = _without_zeros(values)
        binary = big_endian(micros - EPOCH_MICROS, ">i8")
        if zone is None:
            return Cells(values, text, binary)
        return Cells(pa.array(micros).cast(pa.timestamp("us", tz=zone)), join(text, b"+00"), binary)

    return make


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def _hex(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    digits = np.stack([_HEX[data >> 4], _HEX[data & 15]], axis=-1)
    return digits.reshape(*data.shape[:-1], data.shape[-1] * 2)


def _uuid(rng: Rng, n: int) -> Cells:
    data = rng.integers(0, 256, (n, 16), dtype=np.uint8)
    digits = _hex(data)
    text = np.full((n, 36), ord("-"), np.uint8)
    for start, end, at in ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24)):
        text[:, at : at + end - start] = digits[:, start:end]
    digits_of = fixed_width(text)
    return Cells(digits_of.cast(pa.string()), digits_of, fixed_width(data))


def bytea(rng: Rng, n: int, least: int = 4, most: int = 19) -> Cells:
    lengths = rng.integers(least, most + 1, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = rng.integers(0, 256, int(offsets[-1]), dtype=np.uint8)

    def array(offsets: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> pa.Array:
        return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    values = array(offsets, data)
    return Cells(values, join(b"\\x", array(offsets * np.int32(2), _hex(data))), values)


_SYLLABLES = [
    "ka",
    "ro",
    "mi",
    "ten",
    "sal",
    "vo",
    "du",
    "nor",
    "pe",
    "lix",
    "an",
    "ost",
    "ber",
    "qui",
    "zem",
]
_ACCENTED = ("Zürich", "Málaga", "Kraków", "Łódź", "Tromsø", "東京", "Αθήνα", "São Paulo")


def _vocabulary(rng: Rng, words: int) -> pa.Array:
    parts = rng.integers(0, len(_SYLLABLES), (words, 4))
    counts = rng.integers(1, 5, words)
    chosen = zip(parts, counts, strict=True)
    return pa.array(["".join(_SYLLABLES[k] for k in row[:count]) for row, count in chosen])


def _as_cells(values: pa.Array) -> Cells:
    return Cells(values, values.cast(pa.binary()), values.cast(pa.binary()))


def short_text(rng: Rng, n: int) -> Cells:
    """One or two words. One in fifty cells has letters beyond ASCII."""
    words = _vocabulary(rng, 3000)
    plain = pc.binary_join_element_wise(
        pc.utf8_capitalize(words.take(pa.array(rng.integers(0, 3000, n)))),
        pc.if_else(pa.array(rng.random(n) < 0.3), words.take(pa.array(rng.integers(0, 3000, n))), None),
        " ",
        null_handling="skip",
    )
    accented = pa.array(_ACCENTED).take(pa.array(rng.integers(0, len(_ACCENTED), n)))
    return _as_cells(pc.if_else(pa.array(rng.random(n) < 0.02), accented, plain))


def code(rng: Rng, n: int) -> Cells:
    """Letters and digits as in order numbers, only ASCII."""
    letters = fixed_width(rng.integers(ord("A"), ord("Z") + 1, (n, 3)).astype(np.uint8))
    return _as_cells(join(letters, b"-", printed(pa.array(np.abs(_mixed(rng, n, 24))))).cast(pa.string()))


def long_text(words_at_most: int) -> Callable[[Rng, int], Cells]:
    """Sentences of four words to `words_at_most`, some with a comma."""

    def make(rng: Rng, n: int) -> Cells:
        words = _vocabulary(rng, 3000)
        counts = rng.integers(4, words_at_most + 1, n)
        parts = []
        for k in range(words_at_most):
            word = words.take(pa.array(rng.integers(0, 3000, n)))
            parts.append(pc.if_else(pa.array(k < counts), word, None))
        with_comma = pc.binary_join_element_wise(parts[1], ",", "")
        parts[1] = pc.if_else(pa.array(rng.random(n) < 0.1), with_comma, parts[1])
        return _as_cells(pc.binary_join_element_wise(*parts, " ", null_handling="skip"))

    return make


def _jsonb(rng: Rng, n: int) -> Cells:
    words = _vocabulary(rng, 3000).cast(pa.binary())
    text = join(
        b'{"id": ',
        printed(pa.array(rng.integers(1, 10**7, n))),
        b', "tags": ["',
        words.take(pa.array(rng.integers(0, 3000, n))),
        b'", "',
        words.take(pa.array(rng.integers(0, 3000, n))),
        b'"], "state": "',
        words.take(pa.array(rng.integers(0, 3000, n))),
        b'"}',
    )
    return Cells(text.cast(pa.string()), text, join(b"\1", text))


def blanks(width: int) -> Callable[[Rng, int], Cells]:
    return lambda rng, n: _as_cells(fixed_width(np.full((n, width), ord(" "), np.uint8)).cast(pa.string()))


def _array_of_three(element: Callable[[Rng, int], Cells], element_oid: int) -> Callable[[Rng, int], Cells]:
    """One-dimensional arrays of three elements, none null."""

    def make(rng: Rng, n: int) -> Cells:
        elements = [element(rng, n) for _ in range(3)]
        flat = pa.concat_arrays([each.values for each in elements])
        order = np.arange(3 * n).reshape(3, n).T.reshape(-1)
        values = pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32) * 3, flat.take(pa.array(order)))
        a, b, c = (each.text for each in elements)
        header = np.array([1, 0, element_oid, 3, 1], ">i4").tobytes()
        parts = [sized(each.binary) for each in elements]
        return Cells(values, join(b"{", a, b",", b, b",", c, b"}"), join(header, *parts))

    return make


def sized(values: pa.Array) -> pa.Array:
    return join(big_endian(pc.binary_length(values).to_numpy(), ">i4"), values)


def _struct(**fields: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _range_of(bound: Callable[[Rng, int], Cells], quote: bytes = b"") -> Callable[[Rng, int], Cells]:
    """Ranges with both bounds, the lower one included. Their text has `quote` around each bound."""

    def make(rng: Rng, n: int) -> Cells:
        lower, upper = bound(rng, n), bound(rng, n)
        yes, no = pa.array(np.ones(n, bool)), pa.array(np.zeros(n, bool))
        return Cells(
            _struct(lower=lower.values, upper=upper.values, lower_inc=yes, upper_inc=no, empty=no),
            join(b"[", quote, lower.text, quote, b",", quote, upper.text, quote, b")"),
            join(b"\2", sized(lower.binary), sized(upper.binary)),
        )

    return make


def _multirange_of_three(ranges: Callable[[Rng, int], Cells]) -> Callable[[Rng, int], Cells]:
    def make(rng: Rng, n: int) -> Cells:
        a, b, c = (ranges(rng, n) for _ in range(3))
        order = pa.array(np.arange(3 * n).reshape(3, n).T.reshape(-1))
        flat = pa.concat_arrays([each.values for each in (a, b, c)]).take(order)
        return Cells(
            pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32) * 3, flat),
            join(b"{", a.text, b",", b.text, b",", c.text, b"}"),
            join(b"\0\0\0\3", *(sized(each.binary) for each in (a, b, c))),
        )

    return make


def _point(rng: Rng, n: int) -> Cells:
    x, y = _float8(rng, n), _float8(rng, n)
    return Cells(
        _struct(x=x.values, y=y.values), join(b"(", x.text, b",", y.text, b")"), join(x.binary, y.binary)
    )


def _composite(rng: Rng, n: int) -> Cells:
    """Composites of an int4, a short code, a numeric(12,2) and a timestamptz, which needs quotes."""
    a, b, c, d = (
        make(rng, n) for make in (integer(pa.int32(), ">i4", 31), code, numeric(36), _timestamp("UTC"))
    )
    oids = [np.array([oid], ">u4").tobytes() for oid in (23, 1043, 1700, 1184)]
    fields = [
        part for oid, each in zip(oids, (a, b, c, d), strict=True) for part in (oid, sized(each.binary))
    ]
    return Cells(
        _struct(a=a.values, b=b.values, c=c.values, d=d.values),
        join(b"(", a.text, b",", b.text, b",", c.text, b',"', d.text, b'")'),
        join(b"\0\0\0\4", *fields),
    )


def _enum(rng: Rng, n: int) -> Cells:
    labels = pa.array(["new", "paid", "packed", "shipped", "returned", "cancelled"])
    return _as_cells(labels.take(pa.array(rng.integers(0, 6, n))))


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


_USER_TYPES = UserTypes(
    [
        UserType(
            30001,
            "public",
            "line",
            "composite",
            fields=(
                TypeField("a", 23),
                TypeField("b", 1043, 24),
                TypeField("c", 1700, numeric_typmod(12, 2)),
                TypeField("d", 1184),
            ),
        ),
        UserType(30002, "public", "status", "enum"),
    ]
)

TYPES: dict[str, ColumnKind] = {
    "bool": ColumnKind(16, _bool),
    "int2": ColumnKind(21, integer(pa.int16(), ">i2", 15)),
    "int4": ColumnKind(23, integer(pa.int32(), ">i4", 31)),
    "int8": ColumnKind(20, integer(pa.int64(), ">i8", 62)),
    "serial": ColumnKind(20, _serial),
    "oid": ColumnKind(26, _oid),
    "float4": ColumnKind(700, _float4),
    "float8": ColumnKind(701, _float8),
    "numeric(12,2)": ColumnKind(1700, numeric(36), numeric_typmod(12, 2)),
    "numeric": ColumnKind(1700, numeric_as_string(36)),
    "code": ColumnKind(1043, code, 20 + 4),
    "short text": ColumnKind(25, short_text),
    "long text": ColumnKind(25, long_text(28)),
    "jsonb": ColumnKind(3802, _jsonb),
    "bytea": ColumnKind(17, bytea),
    "uuid": ColumnKind(2950, _uuid),
    "date": ColumnKind(1082, _date),
    "time": ColumnKind(1083, _time),
    "timestamp": ColumnKind(1114, _timestamp(None)),
    "timestamptz": ColumnKind(1184, _timestamp("UTC")),
    "char(84)": ColumnKind(1042, blanks(84), 84 + 4),
    "int4[]": ColumnKind(1007, _array_of_three(integer(pa.int32(), ">i4", 31), 23)),
    "text[]": ColumnKind(1009, _array_of_three(code, 25)),
    "int4range": ColumnKind(3904, _range_of(integer(pa.int32(), ">i4", 31))),
    "tsrange": ColumnKind(3908, _range_of(_timestamp(None), b'"')),
    "int4multirange": ColumnKind(4451, _multirange_of_three(_range_of(integer(pa.int32(), ">i4", 31)))),
    "point": ColumnKind(600, _point),
    "composite": ColumnKind(30001, _composite, types=_USER_TYPES),
    "enum": ColumnKind(30002, _enum, types=_USER_TYPES),
}
"""{name: kind}. The name is not always a type's name: `serial` has int8 values, and `code` has varchar values."""
