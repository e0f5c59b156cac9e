"""Values that contain values, for the reference decoder: lists, ranges, multiranges, composites and points.

`resolve` and `convert` take the arguments of those in `reference_types`, and also a live server's description of its
types, as {oid: Described}. `reference_types` reads the scalars, this module reads the structure around them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from reference import extensions
from reference import types as scalars
from reference.types import MalformedError, NoArrowFormError, PgType, Reader, Value


@dataclass(frozen=True)
class Described:
    """A type as a server's catalog describes it. `of` is the oid below a domain, array, range or multirange."""

    kind: str
    namespace: str
    name: str
    of: int = 0
    typmod: int = -1
    fields: tuple[tuple[str, int, int], ...] = ()  # name, type, typmod
    extension: str = ""
    delimiter: str = ","


@dataclass(frozen=True)
class Nested:
    """A shape and the types in it, in order."""

    shape: str  # list, range, multirange, composite, point, vector or halfvec
    parts: tuple[Kind, ...]
    names: tuple[str, ...] = ()
    oids: tuple[int, ...] = ()
    element_oid: int | None = None


Kind: TypeAlias = PgType | Nested
Types: TypeAlias = Mapping[int, Described]

RANGES = {3904: 23, 3906: 1700, 3908: 1114, 3910: 1184, 3912: 1082, 3926: 20}
RANGE_NAMES = {
    "int4range": 3904, "numrange": 3906, "tsrange": 3908, "tstzrange": 3910, "daterange": 3912, "int8range": 3926,
}  # fmt: skip
MULTIRANGES = {4451: 3904, 4532: 3906, 4533: 3908, 4534: 3910, 4535: 3912, 4536: 3926}
MULTIRANGE_NAMES = {
    "int4multirange": 4451, "nummultirange": 4532, "tsmultirange": 4533, "tstzmultirange": 4534,
    "datemultirange": 4535, "int8multirange": 4536,
}  # fmt: skip
ARRAYS = {
    3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926, 6150: 4451, 6151: 4532, 6152: 4533,
    6153: 4534, 6155: 4535, 6157: 4536, 1017: 600,
}  # fmt: skip
BUILT_IN_NAMES = {**RANGE_NAMES, **MULTIRANGE_NAMES, "point": 600}
BUILT_IN_NAMES |= {
    f"_{name}": array for name, oid in BUILT_IN_NAMES.items() for array, of in ARRAYS.items() if of == oid
}
POINT = Nested("point", (PgType("float8"), PgType("float8")), ("x", "y"))


def resolve(
    type_oid: int, typmod: int, explained: tuple[str, str] | None = None, types: Types | None = None
) -> Kind:
    """The type behind an oid. A Type message overrides the server's catalog."""
    types = types or {}
    if type_oid in BUILT_IN_NAMES.values():
        return nested_built_in(type_oid)
    if type_oid in scalars.NAME_OF_OID or type_oid in scalars.ELEMENT_OF_ARRAY:
        return scalars.resolve(type_oid, typmod)
    if type_oid in types and explained in (None, sent_name(type_oid, types)):
        return described(type_oid, typmod, types)
    if explained is not None and explained[0] == "pg_catalog" and explained[1] in BUILT_IN_NAMES:
        return nested_built_in(BUILT_IN_NAMES[explained[1]])
    return scalars.resolve(type_oid, typmod, explained)


def sent_name(oid: int, types: Types) -> tuple[str, str]:
    """The name in a Type message. For a domain it is the name of its base type."""
    if oid not in types:
        names = {**scalars.OID_OF_NAME, **BUILT_IN_NAMES}
        names |= {f"_{scalars.NAME_OF_OID[of]}": array for array, of in scalars.ELEMENT_OF_ARRAY.items()}
        return "pg_catalog", next(name for name, known in names.items() if known == oid)
    one = types[oid]
    return sent_name(one.of, types) if one.kind == "domain" else (one.namespace, one.name)


def nested_built_in(oid: int) -> Nested:
    if oid in RANGES:
        return Nested("range", (scalars.resolve(RANGES[oid], -1),))
    if oid in MULTIRANGES:
        return Nested("multirange", (nested_built_in(MULTIRANGES[oid]),))
    if oid in ARRAYS:
        return Nested("list", (nested_built_in(ARRAYS[oid]),), element_oid=ARRAYS[oid])
    return POINT


def described(oid: int, typmod: int, types: Types) -> Kind:
    if oid not in types:
        return resolve(oid, typmod)
    one = types[oid]
    if one.kind == "enum":
        return PgType("text")
    if one.kind == "domain":
        return described(one.of, one.typmod, types)
    if one.kind == "array":
        return Nested("list", (described(one.of, typmod, types),), element_oid=one.of)
    if one.kind in ("range", "multirange"):
        return Nested(one.kind, (described(one.of, -1, types),))
    if one.kind == "composite":
        return Nested(
            "composite",
            tuple(described(of, modifier, types) for _, of, modifier in one.fields),
            tuple(name for name, _, _ in one.fields),
            tuple(of for _, of, _ in one.fields),
        )
    if one.name in ("vector", "halfvec"):
        return Nested(one.name, (PgType("float4"),))
    known = {"geography": "geometry"}.get(one.name, one.name)
    return PgType(known if one.extension else "citext" if one.name == "citext" else "unknown")


def convert(kind: Kind, binary: bool, raw: bytes) -> Value:
    problems: list[tuple[str, bool]] = []
    if binary and kind != PgType("numeric") and announced_text(kind, raw) > 147_460 + 32 * len(raw):
        return Value(None, "numerics that would become too much text", unrepresentable=True)
    try:
        value = read(kind, binary, raw, problems)
    except NoArrowFormError as problem:
        return Value(None, str(problem), unrepresentable=True)
    lost = [text for text, is_lost in problems if is_lost]
    kept = [text for text, is_lost in problems if not is_lost]
    return Value(value, next(iter(lost + kept), None), bool(lost))


def read(kind: Kind, binary: bool, raw: bytes, problems: list[tuple[str, bool]]) -> Any:
    """The value. Appends (reason, whether something became null) to `problems` for values inside."""
    if isinstance(kind, PgType):
        value = scalars.convert(kind, binary, raw)
        if value.problem and value.value is None:
            raise NoArrowFormError(value.problem)
        if value.problem:
            problems.append((value.problem, value.unrepresentable))
        return value.value
    if kind.shape == "list":
        split = scalars.binary_elements if binary else scalars.text_elements
        name = kind.parts[0].name if isinstance(kind.parts[0], PgType) else ""
        elements, lower = split(PgType(name, is_list=True, element_oid=kind.element_oid), raw)
        expect_room(kind.parts[0], elements)
        if lower != 1:
            problems.append(("array with a lower bound other than 1", False))
        return [part(kind.parts[0], binary, element, problems) for element in elements]
    if kind.shape in ("vector", "halfvec"):
        if not binary:
            return [part(kind.parts[0], binary, each, problems) for each in extensions.vector_from_text(raw)]
        if kind.shape == "halfvec":
            return [extensions.half_from_binary(each) for each in extensions.vector_from_binary(raw, 2)]
        return [part(kind.parts[0], binary, each, problems) for each in extensions.vector_from_binary(raw, 4)]
    if kind.shape == "multirange":
        ranges = binary_multirange(raw) if binary else text_multirange(raw)
        return [part(kind.parts[0], binary, each, problems) for each in ranges]
    if kind.shape == "range":
        found = binary_range(raw) if binary else text_range(raw)
        lower_bound, upper_bound = (
            part(kind.parts[0], binary, each, problems) for each in (found.lower, found.upper)
        )
        return {
            "lower": lower_bound, "upper": upper_bound, "lower_inc": found.lower_inc,
            "upper_inc": found.upper_inc, "empty": found.empty,
        }  # fmt: skip
    if kind.shape == "point":
        fields: list[bytes | None] = list(binary_point(raw) if binary else text_point(raw))
    else:
        fields = binary_record(raw, kind.oids) if binary else text_record(raw, len(kind.parts))
    pairs = zip(kind.names, kind.parts, fields, strict=True)
    return {name: part(one, binary, field, problems) for name, one, field in pairs}


def places(kind: Kind) -> int:
    """The number of flat columns of a value. A range has five: lower, upper and three flags."""
    if isinstance(kind, PgType):
        return 1
    return sum(map(places, kind.parts)) + {"range": places(kind.parts[0]) + 3 if kind.parts else 0}.get(
        kind.shape, 0
    )


def expect_room(kind: Kind, elements: list[bytes | None]) -> None:
    """Checks the size of the result: a null is short in the message, even if its type has many fields."""
    if (
        isinstance(kind, PgType)
        or kind.shape in ("list", "multirange", "vector", "halfvec")
        or places(kind) <= 32
    ):
        return
    nulls = elements.count(None)
    if nulls * places(kind) > places(kind) + 32 * len(elements) + 4 * (len(elements) - nulls) * places(kind):
        raise NoArrowFormError("array of too many null composites")


def announced_text(kind: Kind, raw: bytes | None) -> int:
    """The digits before and after the point announced by the headers of the numerics in a binary value.

    0 if the value is malformed. (A malformed value that announces too many digits is reported as malformed by the
    decoder and by this reader.)
    """
    try:
        return sum(text_of_header(header) for header in numeric_headers(kind, raw))
    except MalformedError:
        return 0


def text_of_header(header: bytes) -> int:
    if len(header) < 8 or Reader(header[4:6]).u16() not in (0, 0x4000):
        return 0
    weight, scale = Reader(header[2:4]).i16(), Reader(header[6:8]).u16()
    return max(1, 4 * (weight + 1)) + 1 + scale


def numeric_headers(kind: Kind, raw: bytes | None) -> list[bytes]:
    """The first bytes of every numeric in a binary value that becomes a string."""
    if raw is None:
        return []
    if isinstance(kind, PgType):
        if kind.name != "numeric" or scalars.precision_and_scale(kind.typmod):
            return []
        if not kind.is_list:
            return [raw[:8]]
        inner: list[tuple[Kind, bytes | None]]
        of: Kind = PgType(kind.name, kind.typmod)
    try:
        if isinstance(kind, PgType):
            inner = [(of, each) for each in scalars.binary_elements(kind, raw)[0]]
        elif kind.shape == "list":
            split = scalars.binary_elements(PgType("", is_list=True, element_oid=kind.element_oid), raw)
            inner = [(kind.parts[0], each) for each in split[0]]
        elif kind.shape == "multirange":
            inner = [(kind.parts[0], each) for each in binary_multirange(raw)]
        elif kind.shape == "range":
            found = binary_range(raw)
            inner = [(kind.parts[0], found.lower), (kind.parts[0], found.upper)]
        elif kind.shape == "composite":
            inner = list(zip(kind.parts, binary_record(raw, kind.oids), strict=True))
        else:
            inner = []
    except NoArrowFormError:
        return []
    return [header for of, each in inner for header in numeric_headers(of, each)]


def part(kind: Kind, binary: bool, raw: bytes | None, problems: list[tuple[str, bool]]) -> Any:
    if raw is None:
        return None
    try:
        return read(kind, binary, raw, problems)
    except NoArrowFormError as problem:
        problems.append((f"inside: {problem}", True))
        return None


# --- ranges -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    lower: bytes | None
    upper: bytes | None
    lower_inc: bool
    upper_inc: bool
    empty: bool = False


QUOTED = rb'"(?:[^"\\]|""|\\\\)*"'
BOUND = rb"(?:" + QUOTED + rb'|[^"\\()\[\],\s]*)'
ONE_RANGE = rb"[\[(]" + BOUND + rb"," + BOUND + rb"[\])]"
RANGE = re.compile(rb"([\[(])(" + BOUND + rb"),(" + BOUND + rb")([\])])", re.DOTALL)
MULTIRANGE = re.compile(rb"\{(?:" + ONE_RANGE + rb"(?:," + ONE_RANGE + rb")*)?\}", re.DOTALL)


def unquoted(raw: bytes) -> bytes | None:
    """A part without its quotes. An empty part is null. Inside quotes, quotes and backslashes are doubled."""
    if raw.startswith(b'"'):
        return re.sub(rb'(["\\])\1', rb"\1", raw[1:-1])
    return raw or None


def text_range(raw: bytes) -> Range:
    if raw == b"empty":
        return Range(None, None, False, False, empty=True)
    match = RANGE.fullmatch(raw)
    if not match:
        raise MalformedError("range")
    lower, upper = unquoted(match[2]), unquoted(match[3])
    return bounded(Range(lower, upper, match[1] == b"[", match[4] == b"]"))


def binary_range(raw: bytes) -> Range:
    reader = Reader(raw)
    flags = reader.u8()
    if flags & ~0x1F or (flags & 1 and flags != 1):
        raise MalformedError("range flags")
    if flags == 1:
        reader.end()
        return Range(None, None, False, False, empty=True)
    lower = None if flags & 8 else reader.take(reader.i32())
    upper = None if flags & 16 else reader.take(reader.i32())
    reader.end()
    return bounded(Range(lower, upper, bool(flags & 2), bool(flags & 4)))


def bounded(found: Range) -> Range:
    if (found.lower is None and found.lower_inc) or (found.upper is None and found.upper_inc):
        raise MalformedError("range that includes a bound that it has not")
    return found


def text_multirange(raw: bytes) -> list[bytes]:
    if not MULTIRANGE.fullmatch(raw):
        raise MalformedError("multirange")
    return [match[0] for match in RANGE.finditer(raw, 1)]


def binary_multirange(raw: bytes) -> list[bytes]:
    reader = Reader(raw)
    count = reader.i32()
    if count < 0:
        raise MalformedError("negative number of ranges")
    ranges = []
    for _ in range(count):
        ranges.append(reader.take(reader.i32()))
        if not ranges[-1] or ranges[-1][0] & 1:
            raise MalformedError("empty range in a multirange")
    reader.end()
    return ranges


# --- composites and points ----------------------------------------------------------------------------------

FIELD = rb"(?:" + QUOTED + rb'|[^"\\(),\s]*)'
RECORD = re.compile(rb"\(" + FIELD + rb"(?:," + FIELD + rb")*\)", re.DOTALL)


def text_record(raw: bytes, count: int) -> list[bytes | None]:
    if not RECORD.fullmatch(raw):
        raise MalformedError("composite")
    if raw == b"()" and count == 0:
        return []
    fields, at = [], 1
    while at < len(raw):
        match = re.compile(FIELD, re.DOTALL).match(raw, at)
        assert match is not None
        fields.append(unquoted(match[0]))
        at = match.end() + 1
    if len(fields) != count:
        raise NoArrowFormError("composite with another number of fields")
    return fields


def binary_record(raw: bytes, oids: tuple[int, ...]) -> list[bytes | None]:
    reader = Reader(raw)
    count = reader.i32()
    if count < 0:
        raise MalformedError("negative number of fields")
    found, fields = [], []
    for _ in range(count):
        found.append(reader.u32())
        length = reader.i32()
        fields.append(None if length == -1 else reader.take(length))
    reader.end()
    if tuple(found) != oids:
        raise NoArrowFormError("composite with other fields")
    return fields


def text_point(raw: bytes) -> tuple[bytes, bytes]:
    if not (raw.startswith(b"(") and raw.endswith(b")") and b"," in raw):
        raise MalformedError("point")
    x, _, y = raw[1:-1].partition(b",")
    return x, y


def binary_point(raw: bytes) -> tuple[bytes, bytes]:
    if len(raw) != 16:
        raise MalformedError("point of a wrong length")
    return raw[:8], raw[8:]
