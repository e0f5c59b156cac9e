"""The far edges of numbers and times, where a decoder that is nearly right goes wrong."""

from __future__ import annotations

import math
import random
import struct
from decimal import Decimal, localcontext
from fractions import Fraction

import pyarrow as pa
import pytest

from pgoutput_fast import Column, Options
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast.encode.values import to_binary, to_text
from pgoutput_fast.schema.column_types import ColumnType, column_type_of

BEYOND_RANGE, DOES_NOT_FIT = 66, 70
EPOCH_2000_MICROS = 10_957 * 86_400_000_000


def kind_of(oid: int, typmod: int = -1) -> ColumnType:
    return column_type_of(Column("c", oid, typmod, False), Options())


def numeric_kind(precision: int, scale: int) -> ColumnType:
    return kind_of(1700, (precision << 16 | scale & 0x7FF) + 4)


def both(kind: ColumnType, text: str, binary: bytes) -> tuple[pa.Scalar, list[int]]:
    """What the two formats agree on: the value and the reasons of its rejects."""
    (from_text, issues), (from_binary, more) = (
        convert(kind, [text.encode()], False),
        convert(kind, [binary], True),
    )
    assert from_text.equals(from_binary)
    assert issues == more
    return from_text[0], [reason for _, reason, _ in issues]


def bits_of(texts: list[str], oid: int) -> list[bytes]:
    array, issues = convert(kind_of(oid), [text.encode() for text in texts], False)
    assert not issues
    code = "d" if oid == 701 else "f"
    return [struct.pack(f">{code}", value) for value in array.to_pylist()]


def test_float8_text_is_bit_exact() -> None:
    """17 digits tell all doubles apart, 18 are what servers 10 and 11 print, and newer ones print the fewest."""
    rng = random.Random(1)
    values = [struct.unpack(">d", rng.randbytes(8))[0] for _ in range(20_000)]
    values += [rng.uniform(-1, 1) * 10.0 ** rng.randint(-6, 16) for _ in range(20_000)]
    values += [math.ldexp(rng.randrange(1, 2 ** rng.randint(1, 52)), -1074) for _ in range(1000)]
    values = [value for value in values if math.isfinite(value)] + [-0.0, 5e-324, 1.7976931348623157e308]
    expected = [struct.pack(">d", value) for value in values]
    for digits in (17, 18):
        assert bits_of([f"{value:.{digits}g}" for value in values], 701) == expected
    some = slice(None, None, 7)
    assert bits_of([to_text("float8", value) for value in values[some]], 701) == expected[some]


def test_float4_text_is_bit_exact() -> None:
    rng = random.Random(2)
    values = [struct.unpack(">f", rng.randbytes(4))[0] for _ in range(20_000)]
    values += [struct.unpack(">f", struct.pack(">f", rng.uniform(-1e6, 1e6)))[0] for _ in range(20_000)]
    values = [value for value in values if math.isfinite(value)] + [-0.0, 1e-45, 3.4028234663852886e38]
    expected = [struct.pack(">f", value) for value in values]
    for digits in (9, 12):
        assert bits_of([f"{value:.{digits}g}" for value in values], 700) == expected
    some = slice(None, None, 7)
    assert bits_of([to_text("float4", value) for value in values[some]], 700) == expected[some]


@pytest.mark.parametrize(
    ("oid", "digits"), [(701, 19), (701, 20), (701, 25), (700, 12), (700, 17), (700, 19)]
)
def test_floats_next_to_the_middle_are_rounded_once(oid: int, digits: int) -> None:
    """Decimals just below, at and just above the middle between two neighbours, where a second rounding would show."""
    rng = random.Random(digits)
    texts, expected = [], []
    with localcontext() as context:
        context.prec = 60
        for _ in range(5000):
            value = math.exp(rng.uniform(0, math.log(1e6)))
            if oid == 700:
                (value,) = struct.unpack(">f", struct.pack(">f", value))
                (bits,) = struct.unpack(">I", struct.pack(">f", value))
                (above,) = struct.unpack(">f", struct.pack(">I", bits + 1))
            else:
                above = math.nextafter(value, math.inf)
            middle = (Decimal(value) + Decimal(above)) / 2
            places = digits - middle.adjusted() - 1
            for step in (-1, 0, 1):
                near = middle.quantize(Decimal(1).scaleb(-places)) + Decimal(step).scaleb(-places)
                distance = Fraction(near) - Fraction(middle)
                even = struct.unpack(">B", struct.pack(">d" if oid == 701 else ">f", value)[-1:])[0] % 2 == 0
                wanted = value if distance < 0 or (distance == 0 and even) else above
                if Fraction(value) < Fraction(near) < Fraction(above):
                    texts.append(f"{near:f}")
                    expected.append(struct.pack(">d" if oid == 701 else ">f", wanted))
    assert len(texts) > 1000
    assert bits_of(texts, oid) == expected


@pytest.mark.parametrize(
    ("text", "unix_micros"),
    [
        ("294247-01-10 04:00:54.775807", 2**63 - 1),
        ("294247-01-10 04:00:54.775808", None),
        ("294276-12-31 23:59:59.999999", None),
        ("4714-11-24 00:00:00 BC", -210_866_803_200_000_000),
        ("0001-12-31 23:59:59.999999 BC", -62_135_596_800_000_001),
    ],
)
@pytest.mark.parametrize("zone", ["", "+00"])
def test_timestamps_at_the_end_of_unix_microseconds(text: str, unix_micros: int | None, zone: str) -> None:
    wire = (unix_micros if unix_micros is not None else 2**63) - EPOCH_2000_MICROS
    if text.startswith("294276"):
        wire = 9_223_371_331_199_999_999
    shown = text.removesuffix(" BC") + zone + (" BC" if text.endswith("BC") else "")
    value, reasons = both(kind_of(1184 if zone else 1114), shown, struct.pack(">q", wire))
    assert value.value == unix_micros
    assert reasons == ([] if unix_micros is not None else [BEYOND_RANGE])


@pytest.mark.parametrize(
    ("text", "unix_days"),
    [("5874897-12-31", 2_145_042_905), ("4714-11-24 BC", -2_440_588), ("4713-01-01 BC", -2_440_550), ("0001-12-31 BC", -719_163)],
)  # fmt: skip
def test_dates_at_the_ends(text: str, unix_days: int) -> None:
    value, reasons = both(kind_of(1082), text, struct.pack(">i", unix_days - 10_957))
    assert (value.value, reasons) == (unix_days, [])


@pytest.mark.parametrize("digits", ["9" * 38, "0" * 37 + "1", "1" + "0" * 37, "5" + "0" * 36 + "5"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_numeric_of_38_places(digits: str, sign: str) -> None:
    text = f"{sign}0.{digits}"
    value, reasons = both(numeric_kind(38, 38), text, to_binary("numeric", text))
    assert (value.as_py(), reasons) == (Decimal(text), [])
    whole, reasons = both(
        numeric_kind(38, 0), sign + digits.lstrip("0"), to_binary("numeric", sign + digits.lstrip("0"))
    )
    assert (whole.as_py(), reasons) == (Decimal(sign + digits), [])
    assert both(numeric_kind(38, 38), "1", to_binary("numeric", "1"))[1] == [DOES_NOT_FIT]


@pytest.mark.parametrize("text", ["12300", "-12300", "0", "99900", "NaN"])
def test_negative_scale_is_text(text: str) -> None:
    kind = numeric_kind(3, -2)
    assert kind.arrow == pa.string()
    assert both(kind, text, to_binary("numeric", text)) == (pa.scalar(text), [])


@pytest.mark.parametrize(
    "text",
    ["9" * 131_072, "-1" + "0" * 131_071, "0." + "0" * 16_382 + "7", "1" * 131_072 + "." + "2" * 16_383, "1" + "0" * 131_067 + "1234"],
    ids=["nines", "power", "smallest", "longest", "zeros"],
)  # fmt: skip
def test_longest_numerics(text: str) -> None:
    assert both(kind_of(1700), text, to_binary("numeric", text)) == (pa.scalar(text), [])
    assert both(numeric_kind(38, 10), text, to_binary("numeric", text))[1] == [DOES_NOT_FIT]


@pytest.mark.parametrize(("oid", "least"), [(700, "1e-45"), (701, "5e-324")])
def test_signed_zero_and_the_least_number(oid: int, least: str) -> None:
    code = "f" if oid == 700 else "d"
    for text in ("-0", "0", least, "-" + least):
        value, reasons = both(kind_of(oid), text, struct.pack(f">{code}", float(text)))
        assert struct.pack(">d", value.as_py()) == struct.pack(
            ">d", struct.unpack(f">{code}", struct.pack(f">{code}", float(text)))[0]
        )
        assert reasons == []
