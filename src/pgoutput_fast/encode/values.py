"""Values in the binary and the text format of PostgreSQL's types, byte for byte as a server sends them.

`to_binary` returns the result of the type's send function, and `to_text` that of its output function, on PostgreSQL 12
or newer with DateStyle ISO, TimeZone UTC, bytea_output hex and extra_float_digits above 0.

| type | Python values |
|---|---|
| bool | bool |
| int2, int4, int8, oid, xid, cid | int |
| float4, float8 | float or int; a float4 is rounded to single precision |
| numeric | Decimal, int, or a str that Decimal reads; digits after the point are kept, trailing zeros too |
| money | Decimal, int, or a str that Decimal reads |
| text, varchar, bpchar, name, xml, refcursor, jsonpath | str |
| json, jsonb | str, the JSON text; it is not brought into jsonb's normal form |
| bytea | bytes |
| uuid | uuid.UUID, or a str that it reads |
| date | datetime.date, or int days since 2000-01-01 |
| time | datetime.time without zone, or int microseconds since midnight, up to 24:00:00 |
| timestamp | datetime without zone, or int microseconds since 2000-01-01 |
| timestamptz | datetime with zone, or int microseconds since 2000-01-01 UTC |
| interval | (months, days, nanoseconds), timedelta, "infinity" or "-infinity" |
| "char", tid, xid8, oid8, pg_lsn, pg_snapshot, txid_snapshot, oidvector, int2vector | str, as a server prints it |
| timetz, bit, varbit, inet, cidr, macaddr, macaddr8, tsvector, tsquery | likewise |
| line, lseg, box, path, polygon, circle | likewise |
| regclass and the other reg* | str, the oid's digits or "-" for 0 |

Ints cover the dates and timestamps that datetime cannot hold, including years BC. Infinity is the str "infinity" or
"-infinity", or the int that encodes it (the maximum or minimum of its width).

A Python type that is not in the table raises a `TypeError`, a value that the type cannot hold a `ValueError`. Both name
the PostgreSQL type, never the value.
"""

import math
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple, NoReturn
from uuid import UUID

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.encode.printed import PRINTED

__all__ = ["array_to_binary", "array_to_text", "to_binary", "to_microseconds", "to_text"]


def to_binary(type_name: str, value: object) -> bytes:
    """`value` in the binary format of the type `type_name`.

    >>> to_binary("numeric", "-1234.50").hex(" ", 2)
    '0002 0000 4000 0002 04d2 1388'
    """
    return _codec(type_name).binary(value)


def to_text(type_name: str, value: object) -> str:
    """`value` in the text format of the type `type_name`.

    >>> to_text("date", -730120)
    '0001-12-31 BC'
    """
    return _codec(type_name).text(value)


def array_to_binary(
    elem_oid: int, elem_type_name: str, items: Sequence[object], lower_bound: int = 1
) -> bytes:
    """A one-dimensional array of `elem_type_name`, whose oid is `elem_oid`; None is a null element.

    An empty array has no dimensions, and so no lower bound.
    """
    expect_list("items", items, "items")
    if not 0 <= elem_oid < 2**32:
        raise ValueError("elem_oid must be an unsigned 32-bit integer")
    _check_bounds(items, lower_bound)
    codec = _codec(elem_type_name)
    has_null = any(item is None for item in items)
    parts = [struct.pack(">iiI", 1 if items else 0, has_null, elem_oid)]
    if items:
        parts.append(struct.pack(">ii", len(items), lower_bound))
    for item in items:
        if item is None:
            parts.append(struct.pack(">i", -1))
        else:
            data = codec.binary(item)
            parts += (struct.pack(">i", len(data)), data)
    return b"".join(parts)


def array_to_text(items: Sequence[str | None], lower_bound: int = 1, delimiter: str = ",") -> str:
    """A one-dimensional array of elements in text format, quoted as array_out does; None is a null element.

    `delimiter` is the element type's: a semicolon for box, a comma for all others.

    >>> array_to_text(["1", None, "null", 'a "b"'])
    '{1,NULL,"null","a \\\\"b\\\\""}'
    """
    expect_list("items", items, "items")
    _check_bounds(items, lower_bound)
    bounds = f"[{lower_bound}:{lower_bound + len(items) - 1}]=" if items and lower_bound != 1 else ""
    elements = ("NULL" if item is None else _quoted(item, delimiter) for item in items)
    return bounds + "{" + delimiter.join(elements) + "}"


def to_microseconds(moment: datetime) -> int:
    """Microseconds from 2000-01-01: in UTC if `moment` has a time zone, otherwise in local time."""
    epoch = datetime(2000, 1, 1, tzinfo=None if moment.utcoffset() is None else UTC)
    return (moment - epoch) // timedelta(microseconds=1)


def _check_bounds(items: Sequence[object], lower_bound: int) -> None:
    if not -(2**31) <= lower_bound <= 2**31 - 1 - len(items):
        raise ValueError("lower_bound must leave all subscripts in the range of int4")


def _quoted(item: str, delimiter: str) -> str:
    if item and item.upper() != "NULL" and delimiter not in item and not _ARRAY_SPECIAL.intersection(item):
        return item
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'


_ARRAY_SPECIAL = frozenset('{}"\\ \t\n\r\v\f')


class _Codec(NamedTuple):
    binary: Callable[[object], bytes]
    text: Callable[[object], str]


def _codec(type_name: str) -> _Codec:
    try:
        return _CODECS[type_name]
    except KeyError:
        raise ValueError(f"type_name must be one of {', '.join(_CODECS)}") from None


def _wrong_type(type_name: str) -> NoReturn:
    raise TypeError(f"{type_name} does not take this Python type")


def _out_of_range(type_name: str) -> NoReturn:
    raise ValueError(f"value is out of range for {type_name}")


def _int(type_name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _wrong_type(type_name)
    return value


def _bool(value: object) -> bool:
    return value if isinstance(value, bool) else _wrong_type("bool")


def _integer(type_name: str, format: str) -> _Codec:
    bits = 8 * struct.calcsize(format)
    lowest, highest = (0, 2**bits - 1) if format.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def checked(value: object) -> int:
        number = _int(type_name, value)
        return number if lowest <= number <= highest else _out_of_range(type_name)

    return _Codec(lambda value: struct.pack(format, checked(value)), lambda value: str(checked(value)))


def _float(type_name: str, format: str, bits_format: str, fixed_below: int) -> _Codec:
    def binary(value: object) -> bytes:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            _wrong_type(type_name)
        try:
            return struct.pack(format, float(value))
        except OverflowError:
            _out_of_range(type_name)

    def from_bits(bits: int) -> float:
        result: float = struct.unpack(format, struct.pack(bits_format, bits))[0]
        return result

    def text(value: object) -> str:
        (bits,) = struct.unpack(bits_format, binary(value))
        number = from_bits(bits)
        if math.isnan(number):
            return "NaN"
        sign = "-" if math.copysign(1, number) < 0 else ""
        if math.isinf(number):
            return sign + "Infinity"
        if number == 0:
            return sign + "0"
        magnitude_bits = bits & ~(1 << (8 * struct.calcsize(format) - 1))
        below, above = from_bits(magnitude_bits - 1), from_bits(magnitude_bits + 1)
        # Excluding the bounds can only add digits to those of repr, which is for doubles.
        fewest = len(Decimal(repr(number)).normalize().as_tuple().digits) if format == ">d" else 1
        digits, exponent = _shortest_digits(below, abs(number), above, fewest)
        return sign + _positional(digits, exponent, fixed_below)

    return _Codec(binary, text)


def _shortest_digits(below: float, number: float, above: float, fewest: int) -> tuple[str, int]:
    """The fewest decimal digits that read back as `number`, and the decimal exponent of the first.

    The bounds of the rounding interval are excluded, as in PostgreSQL and unlike repr: 1e23 has 16 digits. The search
    begins at `fewest` digits.
    """
    exact = Fraction(number)
    low = (Fraction(below) + exact) / 2
    high = 2 * exact - low if math.isinf(above) else (Fraction(above) + exact) / 2
    exponent = Decimal(number).adjusted()
    for count in range(fewest, 18):
        unit = Fraction(10) ** (exponent + 1 - count)
        down = exact // unit
        candidates = [digits for digits in (down, down + 1) if low < digits * unit < high]
        if candidates:
            nearest = str(min(candidates, key=lambda digits: (abs(digits * unit - exact), digits % 2)))
            return nearest.rstrip("0"), exponent + len(nearest) - count
    raise AssertionError("17 digits tell any two doubles apart")


def _positional(digits: str, exponent: int, fixed_below: int) -> str:
    if not -4 <= exponent < fixed_below:
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{exponent:+03d}"
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole


_NUMERIC_NEGATIVE = 0x4000
_NUMERIC_MAX_SCALE = 16383
_NUMERIC_MAX_WHOLE_DIGITS = 131072
# The server reads the display scale of a special value from bits with another meaning: 32 for infinities.
_NUMERIC_SPECIAL = {
    "NaN": struct.pack(">hhHH", 0, 0, 0xC000, 0),
    "Infinity": struct.pack(">hhHH", 0, 0, 0xD000, 32),
    "-Infinity": struct.pack(">hhHH", 0, 0, 0xF000, 32),
}


def _numeric_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (Decimal, int, str)):
        _wrong_type("numeric")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError("value is not a number for numeric") from None
    if number.is_nan():
        return "NaN"
    if number.is_infinite():
        return "-Infinity" if number < 0 else "Infinity"
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if exponent < -_NUMERIC_MAX_SCALE or (number and number.adjusted() >= _NUMERIC_MAX_WHOLE_DIGITS):
        _out_of_range("numeric")
    if not number:
        return "0." + "0" * -exponent if exponent < 0 else "0"
    return format(number, "f")


def _numeric_binary(value: object) -> bytes:
    text = _numeric_text(value)
    if text in _NUMERIC_SPECIAL:
        return _NUMERIC_SPECIAL[text]
    whole, _, fraction = text.lstrip("-").partition(".")
    padded = whole.zfill(-(-len(whole) // 4) * 4) + fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(padded[start : start + 4]) for start in range(0, len(padded), 4)]
    first = next((index for index, group in enumerate(groups) if group), len(groups))
    last = next((index for index in reversed(range(len(groups))) if groups[index]), -1)
    digits = groups[first : last + 1]
    weight = -(-len(whole) // 4) - 1 - first if digits else 0
    sign = _NUMERIC_NEGATIVE if text.startswith("-") else 0
    return struct.pack(f">HhHH{len(digits)}h", len(digits), weight, sign, len(fraction), *digits)


def _string(type_name: str, version: bytes = b"") -> _Codec:
    def checked(value: object) -> str:
        if not isinstance(value, str):
            _wrong_type(type_name)
        if "\0" in value:
            raise ValueError(f"{type_name} cannot hold NUL")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{type_name} cannot hold lone surrogates") from None
        return value

    return _Codec(lambda value: version + checked(value).encode(), checked)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else _wrong_type("bytea")


def _uuid(value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    if not isinstance(value, str):
        _wrong_type("uuid")
    try:
        return UUID(value)
    except ValueError:
        raise ValueError("value is not a uuid") from None


_MICROSECONDS_PER_DAY = 86_400_000_000
_JULIAN_DAY_OF_EPOCH = 2451545
_DATE_INFINITY = 2**31 - 1
_TIMESTAMP_INFINITY = 2**63 - 1


def _days(value: object) -> int:
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - date(2000, 1, 1)).days
    # From 4714-11-24 BC to 5874897-12-31.
    return _finite_or_infinite("date", value, _DATE_INFINITY, -_JULIAN_DAY_OF_EPOCH, 2145031948)


def _timestamp(type_name: str, with_zone: bool) -> Callable[[object], int]:
    def microseconds(value: object) -> int:
        if isinstance(value, datetime):
            if (value.utcoffset() is not None) != with_zone:
                raise ValueError(
                    f"a datetime for {type_name} must have {'a' if with_zone else 'no'} time zone"
                )
            return to_microseconds(value)
        # From 4714-11-24 00:00:00 BC to 294276-12-31 23:59:59.999999.
        return _finite_or_infinite(
            type_name, value, _TIMESTAMP_INFINITY, -211_813_488_000_000_000, 9_223_371_331_199_999_999
        )

    return microseconds


def _finite_or_infinite(type_name: str, value: object, infinity: int, lowest: int, highest: int) -> int:
    if isinstance(value, str):
        if value not in ("infinity", "-infinity"):
            raise ValueError(f'a str for {type_name} must be "infinity" or "-infinity"')
        return infinity if value == "infinity" else -infinity - 1
    number = _int(type_name, value)
    if not lowest <= number <= highest and number not in (infinity, -infinity - 1):
        _out_of_range(type_name)
    return number


def _time_of_day(value: object) -> int:
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise ValueError("a datetime.time for time must have no time zone")
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    microseconds = _int("time", value)
    return microseconds if 0 <= microseconds <= _MICROSECONDS_PER_DAY else _out_of_range("time")


def _date_parts(days: int) -> tuple[str, str]:
    """The date and its era suffix, for days since 2000-01-01 in the proleptic Gregorian calendar."""
    # 400 years are 146097 days, so shift by whole cycles into the years that datetime.date can hold.
    cycles, day_of_cycle = divmod(days, 146097)
    in_cycle = date(2000, 1, 1) + timedelta(day_of_cycle)
    year = in_cycle.year + 400 * cycles
    era_year, era = (year, "") if year > 0 else (1 - year, " BC")
    return f"{era_year:04d}-{in_cycle.month:02d}-{in_cycle.day:02d}", era


def _time_text(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + f".{fraction:06d}".rstrip("0") if fraction else text


def _infinity_text(value: int, infinity: int) -> str | None:
    return {infinity: "infinity", -infinity - 1: "-infinity"}.get(value)


def _date_text(value: object) -> str:
    days = _days(value)
    return _infinity_text(days, _DATE_INFINITY) or "".join(_date_parts(days))


def _timestamp_codec(type_name: str, with_zone: bool) -> _Codec:
    microseconds = _timestamp(type_name, with_zone)

    def text(value: object) -> str:
        total = microseconds(value)
        infinite = _infinity_text(total, _TIMESTAMP_INFINITY)
        if infinite:
            return infinite
        days, rest = divmod(total, _MICROSECONDS_PER_DAY)
        day, era = _date_parts(days)
        return f"{day} {_time_text(rest)}{'+00' if with_zone else ''}{era}"

    return _Codec(lambda value: struct.pack(">q", microseconds(value)), text)


_CODECS = {
    "bool": _Codec(
        lambda value: b"\1" if _bool(value) else b"\0", lambda value: "t" if _bool(value) else "f"
    ),
    "int2": _integer("int2", ">h"),
    "int4": _integer("int4", ">i"),
    "int8": _integer("int8", ">q"),
    "oid": _integer("oid", ">I"),
    "xid": _integer("xid", ">I"),
    "cid": _integer("cid", ">I"),
    "float4": _float("float4", ">f", ">I", fixed_below=6),
    "float8": _float("float8", ">d", ">Q", fixed_below=15),
    "numeric": _Codec(_numeric_binary, _numeric_text),
    "text": _string("text"),
    "varchar": _string("varchar"),
    "bpchar": _string("bpchar"),
    "name": _string("name"),
    "xml": _string("xml"),
    "refcursor": _string("refcursor"),
    "json": _string("json"),
    "jsonb": _string("jsonb", version=b"\1"),
    "jsonpath": _string("jsonpath", version=b"\1"),
    "bytea": _Codec(_bytes, lambda value: "\\x" + _bytes(value).hex()),
    "uuid": _Codec(lambda value: _uuid(value).bytes, lambda value: str(_uuid(value))),
    "date": _Codec(lambda value: struct.pack(">i", _days(value)), _date_text),
    "time": _Codec(
        lambda value: struct.pack(">q", _time_of_day(value)), lambda value: _time_text(_time_of_day(value))
    ),
    "timestamp": _timestamp_codec("timestamp", with_zone=False),
    "timestamptz": _timestamp_codec("timestamptz", with_zone=True),
} | {name: _Codec(*writers) for name, writers in PRINTED.items()}
