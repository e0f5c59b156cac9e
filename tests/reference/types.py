"""Values for the reference decoder: turns one cell of a message into one Python value, slowly and obviously.

`resolve` returns the type of a column's type oid. `convert` turns one text or binary cell into a `Value`. A cell has
one of three results:

* a value (dates are days, times and timestamps microseconds, both since 1970, as Arrow stores them);
* null, with the reason in `Value.problem`: the cell is a legal PostgreSQL value without an Arrow form;
* `MalformedError`: PostgreSQL does not send this cell for this type.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from reference import extensions
from reference.bytes import (
    DAYS_IN_400_YEARS,
    DAYS_TO_2000,
    EPOCH_1970,
    EPOCH_2000_IN_MICROSECONDS,
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MICROSECONDS_A_DAY,
    MICROSECONDS_A_SECOND,
    MalformedError,
    NoArrowFormError,
    Reader,
    ascii_text,
    fixed,
    integer,
    jsonb_from_binary,
    string,
)
from reference.printed import BUILT_IN, PRINTED_FROM_BINARY, PRINTED_FROM_TEXT

# --- tuples -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    kind: str  # n, u, t or b
    raw: bytes
    offset: int


def read_images(payload: bytes, start: int, width: int) -> list[tuple[str, bool, list[Cell]]]:
    """The tuples of an I, U or D as (change type, whether it is only a key, cells), old before new."""
    reader = Reader(payload, start)
    tag, marker = payload[:1], reader.char()
    old_type = "delete" if tag == b"D" else "update_preimage"
    images: list[tuple[str, bool, list[Cell]]] = []
    if marker in "KO" and tag != b"I":
        images.append((old_type, marker == "K", read_tuple(reader, width)))
        marker = reader.char() if tag == b"U" else ""
    elif tag == b"D":
        raise MalformedError("delete without an old tuple", reader.position - 1)
    if tag != b"D":
        if marker != "N":
            raise MalformedError("no new tuple", reader.position - 1)
        new = read_tuple(reader, width)
        for old_cells in [cells for _, _, cells in images]:
            pairs = zip(old_cells, new, strict=True)
            new = [old if cell.kind == "u" and old.kind in "tb" else cell for old, cell in pairs]
        images.append(("insert" if tag == b"I" else "update_postimage", False, new))
    reader.end()
    return images


def read_tuple(reader: Reader, width: int) -> list[Cell]:
    if reader.i16() != width:
        raise MalformedError("another number of cells than the relation has columns", reader.position - 2)
    cells = []
    for _ in range(width):
        kind = reader.char()
        if kind not in "nutb":
            raise MalformedError("unknown kind of cell", reader.position - 1)
        length = reader.i32() if kind in "tb" else 0
        offset = reader.position
        cells.append(Cell(kind, reader.take(length), offset))
    return cells


# --- which type a column has --------------------------------------------------------------------------------

NAME_OF_OID = {
    16: "bool", 17: "bytea", 19: "name", 20: "int8", 21: "int2", 23: "int4", 25: "text", 26: "oid",
    114: "json", 700: "float4", 701: "float8", 1042: "bpchar", 1043: "varchar", 1082: "date", 1083: "time",
    1114: "timestamp", 1184: "timestamptz", 1700: "numeric", 2950: "uuid", 3802: "jsonb",
}  # fmt: skip
OID_OF_NAME = {name: oid for oid, name in NAME_OF_OID.items()}
ELEMENT_OF_ARRAY = {
    1000: 16, 1001: 17, 1003: 19, 1016: 20, 1005: 21, 1007: 23, 1009: 25, 1028: 26, 199: 114, 1021: 700,
    1022: 701, 1014: 1042, 1015: 1043, 1182: 1082, 1183: 1083, 1115: 1114, 1185: 1184, 1231: 1700,
    2951: 2950, 3807: 3802,
}  # fmt: skip


@dataclass(frozen=True)
class PgType:
    """How to read a column: a scalar called `name` ("unknown" if nothing is known) or a list of them."""

    name: str
    typmod: int = -1
    is_list: bool = False
    element_oid: int | None = None  # the element oid that a binary array must have; None for any


def resolve(type_oid: int, typmod: int, explained: tuple[str, str] | None = None) -> PgType:
    """The type of an oid. `explained` is the (namespace, name) in its Type message."""
    if type_oid in NAME_OF_OID:
        return PgType(NAME_OF_OID[type_oid], typmod)
    if type_oid in ELEMENT_OF_ARRAY:
        element_oid = ELEMENT_OF_ARRAY[type_oid]
        return PgType(NAME_OF_OID[element_oid], typmod, is_list=True, element_oid=element_oid)
    if explained is None:
        return PgType("unknown")
    namespace, name = explained
    element = name[1:] if name.startswith("_") else ""
    if namespace == "pg_catalog":  # a domain has the name of its base type here
        if name in OID_OF_NAME:
            return PgType(name, typmod)
        if element not in OID_OF_NAME:
            return PgType("unknown")
        return PgType(element, typmod, is_list=True, element_oid=OID_OF_NAME[element])
    if element:
        return PgType("citext" if element == "citext" else "unknown", is_list=True)
    return PgType("citext" if name == "citext" else "unknown")


# --- one cell -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    value: Any
    problem: str | None = None  # the reason why a reject row keeps the cell's bytes
    unrepresentable: bool = False  # whether the value, or an element of it, is null because of the problem


def convert(kind: PgType, binary: bool, raw: bytes) -> Value:
    try:
        if kind.is_list:
            return convert_array(kind, binary, raw)
        return Value(scalar(kind, binary, raw))
    except NoArrowFormError as problem:
        return Value(None, str(problem), unrepresentable=True)


def scalar(kind: PgType, binary: bool, raw: bytes) -> Any:
    if kind.name == "numeric":
        return numeric_value(numeric_as_text(raw) if binary else ascii_text(raw), kind.typmod)
    return (FROM_BINARY if binary else FROM_TEXT)[kind.name](raw)


def convert_array(kind: PgType, binary: bool, raw: bytes) -> Value:
    elements, lower_bound = (binary_elements if binary else text_elements)(kind, raw)
    values: list[Any] = []
    problem = None
    for element in elements:
        try:
            values.append(None if element is None else scalar(kind, binary, element))
        except NoArrowFormError as reason:
            values.append(None)
            problem = problem or f"array element: {reason}"
    if problem:
        return Value(values, problem, unrepresentable=True)
    return Value(values, None if lower_bound == 1 else "array with a lower bound other than 1")


# --- arrays -------------------------------------------------------------------------------------------------


def binary_elements(kind: PgType, raw: bytes) -> tuple[list[bytes | None], int]:
    reader = Reader(raw)
    dimensions = reader.i32()
    if not 0 <= dimensions <= 6:
        raise MalformedError("impossible number of array dimensions")
    if reader.i32() not in (0, 1):
        raise MalformedError("array flags that are neither 0 nor 1")
    element_oid = reader.u32()
    if kind.element_oid not in (None, element_oid):
        raise MalformedError("array of another element type")
    sizes, lower_bounds = [], []
    for _ in range(dimensions):
        sizes.append(reader.i32())
        lower_bounds.append(reader.i32())
    if any(size < 0 for size in sizes):
        raise MalformedError("negative array size")
    if dimensions == 0 or 0 in sizes:  # int2vector cast to int2[] has one dimension of size 0
        reader.end()
        return [], 1
    elements: list[bytes | None] = []
    for _ in range(math.prod(sizes)):
        length = reader.i32()
        elements.append(None if length == -1 else reader.take(length))
    reader.end()
    if dimensions > 1:
        raise NoArrowFormError("multi-dimensional array")
    return elements, lower_bounds[0]


BOUNDS = re.compile(rb"((?:\[[^\[\]:=]+:[^\[\]:=]+\])+)=")


def text_elements(kind: PgType, raw: bytes) -> tuple[list[bytes | None], int]:
    """The elements in a text of array_out. Quotes and bounds are ASCII; the text of elements is unchanged."""
    delimiter = {"box": b";", "geometry": b":"}.get(kind.name, b",")
    if not raw.startswith(b"["):
        if raw.startswith(b"{{"):
            text_sizes(raw, delimiter)
            raise NoArrowFormError("multi-dimensional array")
        return text_array_body(raw, delimiter), 1
    match = BOUNDS.match(raw)
    if not match:
        raise MalformedError("array bounds")
    bounds = [
        tuple(integer(bound, INT32_MIN, INT32_MAX) for bound in pair.split(b":"))
        for pair in match[1][1:-1].split(b"][")
    ]
    body = raw[match.end() :]
    if any(lower > upper for lower, upper in bounds) or all(lower == 1 for lower, _ in bounds):
        raise MalformedError("array bounds")
    if len(bounds) > 6:
        raise MalformedError("more array dimensions than there are")
    if len(bounds) > 1:
        if text_sizes(body, delimiter) != [upper - lower + 1 for lower, upper in bounds]:
            raise MalformedError("array bounds that do not fit the array")
        raise NoArrowFormError("multi-dimensional array")
    elements = text_array_body(body, delimiter)
    lower, upper = bounds[0]
    if len(elements) != upper - lower + 1:
        raise MalformedError("array bounds that do not fit the array")
    return elements, lower


QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def text_array_body(body: bytes, delimiter: bytes = b",") -> list[bytes | None]:
    unquoted_element = re.compile(rb'[^"\\{}' + delimiter + rb" \t\n\r\v\f]+")
    if body == b"{}":
        return []
    if not body.startswith(b"{"):
        raise MalformedError("array without {")
    elements: list[bytes | None] = []
    at = 1
    while True:
        if quoted := QUOTED.match(body, at):
            elements.append(ESCAPED.sub(rb"\1", quoted[1]))
            at = quoted.end()
        elif unquoted := unquoted_element.match(body, at):
            if unquoted[0] != b"NULL" and unquoted[0].upper() == b"NULL":
                raise MalformedError("array element that PostgreSQL would have quoted")
            elements.append(None if unquoted[0] == b"NULL" else unquoted[0])
            at = unquoted.end()
        else:
            raise MalformedError("array element")
        if body[at:] == b"}":
            return elements
        if body[at : at + 1] != delimiter:
            raise MalformedError("array element that ends neither with the delimiter nor with }")
        at += 1


def text_sizes(body: bytes, delimiter: bytes) -> list[int]:
    """The sizes of an array's dimensions. Each part is an element, or an array with one dimension less."""
    unquoted = re.compile(rb'[^"\\{}' + delimiter + rb" \t\n\r\v\f]+")

    def array(at: int) -> tuple[list[int], int]:
        """(the sizes of the array that begins at a brace, its end)."""
        shapes: list[list[int]] = []
        while True:
            at += 1  # skip the brace or a delimiter
            if body[at : at + 1] == b"{":
                shape, at = array(at)
            elif match := QUOTED.match(body, at) or unquoted.match(body, at):
                if match[0] != b"NULL" and match[0].upper() == b"NULL":
                    raise MalformedError("array element that PostgreSQL would have quoted")
                shape, at = [], match.end()
            else:
                raise MalformedError("array element")
            shapes.append(shape)
            if body[at : at + 1] == b"}":
                break
            if body[at : at + 1] != delimiter:
                raise MalformedError("array element that ends neither with the delimiter nor with }")
        if any(shape != shapes[0] for shape in shapes):
            raise MalformedError("array whose parts differ")
        return [len(shapes), *shapes[0]], at + 1

    if not body.startswith(b"{") or body.startswith(b"{" * 7):
        raise MalformedError("array of impossible dimensions")
    sizes, end = array(0)
    if end != len(body):
        raise MalformedError("bytes behind an array")
    return sizes


# --- scalars from text --------------------------------------------------------------------------------------


def bool_from_text(raw: bytes) -> bool:
    if raw not in (b"t", b"f"):
        raise MalformedError("boolean")
    return raw == b"t"


def bytea_from_text(raw: bytes) -> bytes:
    if not re.fullmatch(rb"\\x([0-9a-f]{2})*", raw):
        raise MalformedError("bytea")
    return bytes.fromhex(raw[2:].decode("ascii"))


def uuid_from_text(raw: bytes) -> str:
    if not re.fullmatch(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", raw):
        raise MalformedError("uuid")
    return raw.decode("ascii")


FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-][0-9]{2,3})?")


def float_from_text(raw: bytes, significant_bits: int, least_exponent: int) -> float:
    """The nearest number with this many significant bits, ties to even. It is rounded once, from the exact decimal."""
    text = ascii_text(raw)
    if text in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    if not FLOAT.fullmatch(text):
        raise MalformedError("floating-point number")
    exact = Fraction(Decimal(text))
    if exact == 0:
        return float(text)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, least_exponent) - (significant_bits - 1))
    rounded = round(size / step) * step
    if rounded == 0 or rounded >= Fraction(2) ** (2 - least_exponent):
        raise NoArrowFormError("floating-point number beyond its type")
    return float(rounded if exact > 0 else -rounded)


DATE = r"([0-9]{4}|[1-9][0-9]{4,6})-([0-9]{2})-([0-9]{2})"
CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
ZONE = r"([+-])([0-9]{2}|[1-9][0-9]{2})(?::([0-9]{2})(?::([0-9]{2}))?)?"
ERA = r"( BC)?"


def fields(raw: bytes, pattern: str, what: str) -> tuple[str | None, ...]:
    if raw in (b"infinity", b"-infinity") and pattern.startswith(DATE):
        raise NoArrowFormError(f"infinite {what}")
    match = re.fullmatch(pattern, ascii_text(raw))
    if not match:
        raise MalformedError(what)
    return match.groups()


def days_since_1970(year: str, month: str, day: str, era: str | None) -> int:
    """The days since 1970. The Gregorian calendar repeats every 400 years, which maps any year to datetime's range."""
    if int(year) == 0:
        raise MalformedError("year 0")
    signed_year = 1 - int(year) if era else int(year)
    cycles, year_of_cycle = divmod(signed_year - 2000, 400)
    try:
        date = datetime.date(2000 + year_of_cycle, int(month), int(day))
    except ValueError:
        raise MalformedError("no such day") from None
    return (date - EPOCH_1970).days + cycles * DAYS_IN_400_YEARS


def microseconds_of_day(hour: str, minute: str, second: str, fraction: str | None) -> int:
    if int(minute) > 59 or int(second) > 59:
        raise MalformedError("no such time of day")
    seconds = (int(hour) * 60 + int(minute)) * 60 + int(second)
    return seconds * MICROSECONDS_A_SECOND + int((fraction or "").ljust(6, "0"))


def date_from_text(raw: bytes) -> int:
    year, month, day, era = fields(raw, DATE + ERA, "date")
    return date_in_range(days_since_1970(str(year), str(month), str(day), era))


def time_from_text(raw: bytes) -> int:
    hour, minute, second, fraction = fields(raw, CLOCK, "time")
    return time_in_range(microseconds_of_day(str(hour), str(minute), str(second), fraction))


def timestamp_from_text(raw: bytes) -> int:
    return timestamp_from_fields(fields(raw, DATE + " " + CLOCK + ERA, "timestamp"))


def timestamptz_from_text(raw: bytes) -> int:
    found = fields(raw, DATE + " " + CLOCK + ZONE + ERA, "timestamptz")
    sign, hours, minutes, seconds = found[7:11]
    offset = microseconds_of_day(hours or "0", minutes or "0", seconds or "0", None)
    # The limits of POSIX zones: UTC+167:59:60, and one hour east of UTC-167:59:60 in summer.
    if offset > (169 if sign == "+" else 168) * 3600 * MICROSECONDS_A_SECOND:
        raise MalformedError("no such time zone offset")
    return timestamp_from_fields((*found[:7], found[11]), -offset if sign == "+" else offset)


def timestamp_from_fields(found: tuple[str | None, ...], to_utc: int = 0) -> int:
    year, month, day, hour, minute, second, fraction, era = found
    if int(hour or 0) > 23:
        raise MalformedError("no such time of day")
    days = days_since_1970(str(year), str(month), str(day), era)
    clock = microseconds_of_day(str(hour), str(minute), str(second), fraction)
    return timestamp_in_range(days * MICROSECONDS_A_DAY + clock + to_utc)


def date_in_range(days: int) -> int:
    if not INT32_MIN <= days <= INT32_MAX:
        raise NoArrowFormError("date out of range")
    return days


def time_in_range(microseconds: int) -> int:
    if not 0 <= microseconds <= MICROSECONDS_A_DAY:
        raise MalformedError("no such time of day")
    if microseconds == MICROSECONDS_A_DAY:
        raise NoArrowFormError("time 24:00:00")
    return microseconds


def timestamp_in_range(microseconds: int) -> int:
    if not INT64_MIN <= microseconds <= INT64_MAX:
        raise NoArrowFormError("timestamp out of range")
    return microseconds


# --- numeric ------------------------------------------------------------------------------------------------


def precision_and_scale(typmod: int) -> tuple[int, int] | None:
    """(p, s) of numeric(p,s) if a decimal128 can hold it. The scale is an 11-bit signed number."""
    if typmod < 4:
        return None
    precision, scale = (typmod - 4) >> 16, (typmod - 4) & 0x7FF
    if scale >= 0x400:
        scale -= 0x800
    return (precision, scale) if 1 <= precision <= 38 and 0 <= scale <= precision else None


NUMERIC = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?")


def numeric_value(text: str, typmod: int) -> str | Decimal:
    limits = precision_and_scale(typmod)
    if text in ("NaN", "Infinity", "-Infinity"):
        if limits:
            raise NoArrowFormError(f"{text} in a decimal")
        return text
    match = NUMERIC.fullmatch(text)
    if not match:
        raise MalformedError("numeric")
    sign, whole, fraction = match[1], match[2], match[3] or ""
    if sign and not (whole + fraction).strip("0"):
        raise MalformedError("numeric with a negative zero")
    if not limits:
        return text
    precision, scale = limits
    fraction = fraction.rstrip("0")
    if len(whole.lstrip("0")) > precision - scale or len(fraction) > scale:
        raise NoArrowFormError("numeric beyond its precision or scale")
    return Decimal(f"{sign}{whole}.{fraction.ljust(scale, '0')}")


def numeric_as_text(raw: bytes) -> str:
    """The text of numeric_out. Digits have base 10000; the first digit counts 10000 ** weight."""
    reader = Reader(raw)
    count, weight, sign, scale = reader.u16(), reader.i16(), reader.u16(), reader.u16()
    groups = [reader.u16() for _ in range(count)]
    reader.end()
    if sign not in (0x0000, 0x4000, 0xC000, 0xD000, 0xF000) or scale > 0x3FFF:
        raise MalformedError("numeric header")
    if any(group > 9999 for group in groups):
        raise MalformedError("numeric digit")
    if sign in (0xC000, 0xD000, 0xF000):
        return {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}[sign]
    digits = "".join(f"{group:04d}" for group in groups)
    point = 4 * (weight + 1)  # place of the decimal point in `digits`
    if point < 0:
        digits, point = "0" * -point + digits, 0
    digits = digits.ljust(point + scale, "0")
    whole = digits[:point].lstrip("0") or "0"
    fraction = digits[point : point + scale]
    minus = "-" if sign == 0x4000 and (whole + fraction).strip("0") else ""
    return minus + whole + ("." + fraction if scale else "")


# --- scalars from binary ------------------------------------------------------------------------------------


def bool_from_binary(raw: bytes) -> bool:
    value: int = fixed(raw, "B")
    if value > 1:
        raise MalformedError("boolean that is neither 0 nor 1")
    return value == 1


def date_from_binary(raw: bytes) -> int:
    days = fixed(raw, "i")
    if days in (INT32_MIN, INT32_MAX):
        raise NoArrowFormError("infinite date")
    return date_in_range(days + DAYS_TO_2000)


def timestamp_from_binary(raw: bytes) -> int:
    microseconds = fixed(raw, "q")
    if microseconds in (INT64_MIN, INT64_MAX):
        raise NoArrowFormError("infinite timestamp")
    return timestamp_in_range(microseconds + EPOCH_2000_IN_MICROSECONDS)


def uuid_from_binary(raw: bytes) -> str:
    digits = fixed(raw, "16s").hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


FROM_TEXT: dict[str, Callable[[bytes], Any]] = {
    "bool": bool_from_text,
    "bytea": bytea_from_text,
    "int2": lambda raw: integer(raw, -(2**15), 2**15 - 1),
    "int4": lambda raw: integer(raw, INT32_MIN, INT32_MAX),
    "int8": lambda raw: integer(raw, INT64_MIN, INT64_MAX),
    "oid": lambda raw: integer(raw, 0, 2**32 - 1),
    "float4": lambda raw: float_from_text(raw, significant_bits=24, least_exponent=-126),
    "float8": lambda raw: float_from_text(raw, significant_bits=53, least_exponent=-1022),
    "date": date_from_text,
    "time": time_from_text,
    "timestamp": timestamp_from_text,
    "timestamptz": timestamptz_from_text,
    "uuid": uuid_from_text,
}
FROM_BINARY: dict[str, Callable[[bytes], Any]] = {
    "bool": bool_from_binary,
    "bytea": lambda raw: raw,
    "int2": lambda raw: fixed(raw, "h"),
    "int4": lambda raw: fixed(raw, "i"),
    "int8": lambda raw: fixed(raw, "q"),
    "oid": lambda raw: fixed(raw, "I"),
    "float4": lambda raw: fixed(raw, "f"),
    "float8": lambda raw: fixed(raw, "d"),
    "date": date_from_binary,
    "time": lambda raw: time_in_range(fixed(raw, "q")),
    "timestamp": timestamp_from_binary,
    "timestamptz": timestamp_from_binary,
    "uuid": uuid_from_binary,
    "jsonb": jsonb_from_binary,
    "unknown": lambda raw: "\\x" + raw.hex(),
}
for _name in ("text", "varchar", "bpchar", "name", "json", "jsonb", "citext", "unknown"):
    FROM_TEXT.setdefault(_name, string)
    FROM_BINARY.setdefault(_name, string)

FROM_TEXT |= PRINTED_FROM_TEXT | extensions.FROM_TEXT
FROM_BINARY |= PRINTED_FROM_BINARY | extensions.FROM_BINARY | {"ltree": jsonb_from_binary}
NAME_OF_OID |= {oid: name for oid, (name, _) in BUILT_IN.items()}
OID_OF_NAME |= {name: oid for oid, (name, _) in BUILT_IN.items()}
ELEMENT_OF_ARRAY |= {array: oid for oid, (_, array) in BUILT_IN.items() if array}
