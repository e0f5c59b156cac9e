"""Values that the reference decoder prints as PostgreSQL does: built-in types other than numbers, times and text."""

from __future__ import annotations

import ipaddress
import math
import re
import struct
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

from reference.bytes import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MalformedError,
    NoArrowFormError,
    Reader,
    ascii_text,
    fixed,
    integer,
    jsonb_from_binary,
    string,
)

# {oid: (name, oid of its array type or 0)}
BUILT_IN = {
    18: ("char", 1002), 22: ("int2vector", 1006), 24: ("regproc", 1008), 27: ("tid", 1010), 28: ("xid", 1011),
    29: ("cid", 1012), 30: ("oidvector", 1013), 142: ("xml", 143), 194: ("pg_node_tree", 0), 601: ("lseg", 1018),
    602: ("path", 1019), 603: ("box", 1020), 604: ("polygon", 1027), 628: ("line", 629), 650: ("cidr", 651),
    718: ("circle", 719), 774: ("macaddr8", 775), 790: ("money", 791), 829: ("macaddr", 1040), 869: ("inet", 1041),
    1033: ("aclitem", 1034), 1186: ("interval", 1187), 1266: ("timetz", 1270), 1560: ("bit", 1561),
    1562: ("varbit", 1563), 1790: ("refcursor", 2201), 2202: ("regprocedure", 2207), 2203: ("regoper", 2208),
    2204: ("regoperator", 2209), 2205: ("regclass", 2210), 2206: ("regtype", 2211), 2970: ("txid_snapshot", 2949),
    3220: ("pg_lsn", 3221), 3614: ("tsvector", 3643), 3615: ("tsquery", 3645), 3642: ("gtsvector", 3644),
    3734: ("regconfig", 3735), 3769: ("regdictionary", 3770), 4072: ("jsonpath", 4073), 4089: ("regnamespace", 4090),
    4096: ("regrole", 4097), 4191: ("regcollation", 4192), 5038: ("pg_snapshot", 5039), 5069: ("xid8", 271),
    6437: ("oid8", 6442), 6490: ("regdatabase", 6491),
}  # fmt: skip


# --- money and interval: only text that the server prints ----------------------------------------------------


def money_text(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02d}"


def money_from_text(raw: bytes) -> Decimal:
    text = ascii_text(raw)
    digits = re.sub(r"[$,.]", "", text)
    if not re.fullmatch(r"-?[0-9]{3,40}", digits) or money_text(int(digits)) != text:
        raise MalformedError("money")
    if not INT64_MIN <= int(digits) <= INT64_MAX:
        raise MalformedError("money out of range")
    return Decimal(int(digits)).scaleb(-2, Context(prec=40))


def interval_value(months: int, days: int, micros: int) -> tuple[int, int, int]:
    """Arrow's form of an interval: (months, days, nanoseconds)."""
    if (months, days, micros) in ((INT32_MAX, INT32_MAX, INT64_MAX), (INT32_MIN, INT32_MIN, INT64_MIN)):
        raise NoArrowFormError("infinite interval")
    if not INT64_MIN <= micros * 1000 <= INT64_MAX:
        raise NoArrowFormError("interval beyond nanoseconds")
    return months, days, micros * 1000


def interval_text(months: int, days: int, micros: int) -> str:
    """An interval in IntervalStyle postgres. A positive field after a negative one has a plus sign."""
    years, months = int(math.copysign(1, months)) * (abs(months) // 12), int(math.fmod(months, 12))
    parts: list[str] = []
    negative = False
    for value, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if value:
            parts.append(f"{'+' if negative and value > 0 else ''}{value} {unit}{'' if value == 1 else 's'}")
            negative = value < 0
    if micros or not parts:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        sign = "-" if micros < 0 else "+" if negative else ""
        clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        parts.append(clock + (f".{fraction:06d}".rstrip("0") if fraction else ""))
    return " ".join(parts)


INTERVAL = re.compile(
    r"(?:([+-]?[0-9]{1,10}) years? ?)?(?:([+-]?[0-9]{1,10}) mons? ?)?(?:([+-]?[0-9]{1,10}) days? ?)?"
    r"(?:([+-]?)([0-9]{1,10}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?)?"
)


def interval_from_text(raw: bytes) -> tuple[int, int, int]:
    text = ascii_text(raw)
    if text in ("infinity", "-infinity"):
        raise NoArrowFormError("infinite interval")
    match = INTERVAL.fullmatch(text)
    if not match:
        raise MalformedError("interval")
    years, mons, days = (int(part or 0) for part in match.groups()[:3])
    sign, hours, minutes, seconds, fraction = match.groups()[3:]
    micros = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    micros = (micros * 1_000_000 + int((fraction or "").ljust(6, "0"))) * (-1 if sign == "-" else 1)
    months = years * 12 + mons
    if abs(mons) > 11 or interval_text(months, days, micros) != text:
        raise MalformedError("interval")
    if not (INT32_MIN <= months <= INT32_MAX and INT32_MIN <= days <= INT32_MAX):
        raise MalformedError("interval out of range")
    if not INT64_MIN <= micros <= INT64_MAX:
        raise MalformedError("interval out of range")
    return interval_value(months, days, micros)


def interval_from_binary(raw: bytes) -> tuple[int, int, int]:
    if len(raw) != 16:
        raise MalformedError("interval of a wrong length")
    micros, days, months = struct.unpack(">qii", raw)
    return interval_value(months, days, micros)


# --- system types -------------------------------------------------------------------------------------------


def char_from_binary(raw: bytes) -> str:
    code: int = fixed(raw, "B")
    return "" if code == 0 else chr(code) if code < 128 else f"\\{code:03o}"


def char_from_text(raw: bytes) -> str:
    """Servers before 15 print a non-ASCII byte as it is."""
    return char_from_binary(raw) if len(raw) == 1 and raw[0] >= 128 else string(raw)


def lsn_from_binary(raw: bytes) -> str:
    position: int = fixed(raw, "Q")
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def lsn_from_text(raw: bytes) -> str:
    """In both forms: servers since 19 print eight digits after the slash."""
    match = re.fullmatch(r"([0-9A-F]{1,8})/([0-9A-F]{1,8})", ascii_text(raw))
    if not match:
        raise MalformedError("pg_lsn")
    high, low = (int(digits, 16) for digits in match.groups())
    if match[1] != f"{high:X}" or match[2] not in (f"{low:X}", f"{low:08X}"):
        raise MalformedError("pg_lsn")
    return f"{high:X}/{low:X}"


def tid_from_binary(raw: bytes) -> str:
    reader = Reader(raw)
    block, offset = reader.u32(), reader.u16()
    reader.end()
    return f"({block},{offset})"


def snapshot_from_binary(raw: bytes) -> str:
    reader = Reader(raw)
    count = reader.u32()
    least, next_one = reader.number("Q"), reader.number("Q")
    if count * 8 != len(raw) - 20:
        raise MalformedError("snapshot of a wrong length")
    running = [str(reader.number("Q")) for _ in range(count)]
    return f"{least}:{next_one}:{','.join(running)}"


def vector_from_binary(raw: bytes, element_oid: int, code: str) -> str:
    reader = Reader(raw)
    dimensions, flags, oid = reader.u32(), reader.u32(), reader.u32()
    if dimensions > 1 or flags != 0 or oid != element_oid:
        raise MalformedError("vector's header")
    values = []
    if dimensions:
        size, lower = reader.u32(), reader.u32()
        width = struct.calcsize(">" + code)
        if lower != 0 or size * (4 + width) != len(raw) - 20:
            raise MalformedError("vector's size")
        for _ in range(size):
            if reader.u32() != width:
                raise MalformedError("vector's element")
            values.append(str(reader.number(code)))
    reader.end()
    return " ".join(values)


def timetz_from_binary(raw: bytes) -> str:
    reader = Reader(raw)
    micros, west = reader.number("q"), reader.i32()
    reader.end()
    if not 0 <= micros <= 86_400_000_000:
        raise MalformedError("timetz")
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    text += f".{fraction:06d}".rstrip("0") if fraction else ""
    if west == -(2**31):
        return text + "+4294370773:4294967282:4294967288"  # numbers that wrapped
    zone = f"{abs(west) // 3600:02d}:{abs(west) // 60 % 60:02d}:{abs(west) % 60:02d}"
    zone = zone.removesuffix(":00").removesuffix(":00") if zone.endswith(":00") else zone
    return text + ("-" if west > 0 else "+") + zone


def bits_from_binary(raw: bytes) -> str:
    reader = Reader(raw)
    count = reader.i32()
    if count < 0 or (count + 7) // 8 != len(raw) - 4:
        raise MalformedError("bits of a wrong length")
    return "".join(f"{byte:08b}" for byte in raw[4:])[:count]


# --- network ------------------------------------------------------------------------------------------------


def address_from_binary(raw: bytes, is_cidr: bool) -> str:
    reader = Reader(raw)
    family, bits, flag, size = (reader.u8() for _ in range(4))
    if family not in (2, 3) or size != (4 if family == 2 else 16) or flag > 1 or bits > 8 * size:
        raise MalformedError("network address")
    packed = reader.take(size)
    reader.end()
    if family == 2:
        text = str(ipaddress.IPv4Address(packed))
    else:
        dotted = str(ipaddress.IPv4Address(packed[12:]))
        if packed[:12] == bytes(12) and packed[12:14] != b"\0\0":
            text = f"::{dotted}"
        elif packed[:12] == bytes(10) + b"\xff\xff":
            text = f"::ffff:{dotted}"
        else:
            text = ipaddress.IPv6Address(packed).compressed
    return text if bits == 8 * size and not is_cidr else f"{text}/{bits}"


def hardware_address(size: int) -> Callable[[bytes], str]:
    return lambda raw: bytes(fixed(raw, f"{size}s")).hex(":")


# --- geometry -----------------------------------------------------------------------------------------------


def printed_float(value: float) -> str:
    """The fewest digits strictly inside the interval that rounds to `value`; among those, the nearest."""
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1, value) < 0 else ""
    size = abs(value)
    if math.isinf(size) or size == 0:
        return sign + ("0" if size == 0 else "Infinity")
    exact = Fraction(size)
    bounds = [(exact + Fraction(math.nextafter(size, 0))) / 2]
    if size < 1.7976931348623157e308:
        bounds.append((exact + Fraction(math.nextafter(size, math.inf))) / 2)
    for count in range(1, 18):
        near = {
            Context(prec=count, rounding=rounding).create_decimal(Decimal(size))
            for rounding in (ROUND_FLOOR, ROUND_CEILING)
        }
        good = [each for each in near if float(each) == size and Fraction(each) not in bounds]
        if good:
            best = min(
                good, key=lambda each: (abs(Fraction(each) - exact), int(each.as_tuple().digits[-1]) % 2)
            )
            break
    exponent = best.adjusted()
    if -4 <= exponent < 15:
        text = f"{best:f}"
        return sign + (text.rstrip("0").rstrip(".") if "." in text else text)
    digits = "".join(map(str, best.as_tuple().digits)).rstrip("0")
    return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{exponent:+03d}"


def shape(pattern: str) -> Callable[[bytes], str]:
    """A reader of a geometric type. Each `#` of the pattern is a float."""
    count = pattern.count("#")

    def from_binary(raw: bytes) -> str:
        values = iter(struct.unpack(f">{count}d", fixed(raw, f"{8 * count}s")))
        return re.sub("#", lambda _: printed_float(next(values)), pattern)

    return from_binary


def points(raw: bytes, brackets: str) -> str:
    reader = Reader(raw)
    count = reader.u32()
    if count == 0 or 16 * count != len(raw) - 4:
        raise MalformedError("points of a wrong length")
    inner = ",".join(shape("(#,#)")(reader.take(16)) for _ in range(count))
    return brackets[0] + inner + brackets[1]


def path_from_binary(raw: bytes) -> str:
    if not raw or raw[0] > 1:
        raise MalformedError("path that is neither open nor closed")
    return points(raw[1:], "()" if raw[0] else "[]")


# --- text search --------------------------------------------------------------------------------------------


def lexeme(reader: Reader) -> bytes:
    end = reader.data.find(b"\0", reader.position)
    if end < 0:
        raise MalformedError("lexeme without its NUL")
    word = reader.take(end - reader.position)
    reader.take(1)
    return b"'" + word.replace(b"\\", b"\\\\").replace(b"'", b"''") + b"'"


def tsvector_from_binary(raw: bytes) -> str:
    reader = Reader(raw)
    count = reader.i32()
    if count < 0 or count > len(raw):
        raise MalformedError("number of lexemes")
    words = []
    for _ in range(count):
        word = lexeme(reader)
        places = [reader.u16() for _ in range(reader.u16())]
        shown = [f"{place & 0x3FFF}{['', 'C', 'B', 'A'][place >> 14]}" for place in places]
        words.append(word + (":" + ",".join(shown)).encode() if shown else word)
    reader.end()
    return string(b" ".join(words))


def tsquery_from_binary(raw: bytes) -> str:
    """A tsquery. Operators come before their operands, the right operand first: read all, then build from the end."""
    reader = Reader(raw)
    count = reader.i32()
    if count < 0 or count > len(raw):
        raise MalformedError("number of items")
    items: list[tuple[str, bytes]] = []
    for _ in range(count):
        kind, code = reader.u8(), reader.u8()
        if kind == 1:
            prefix = reader.u8()
            if code > 15 or prefix > 1:
                raise MalformedError("weights")
            weights = "*" * prefix + "".join(
                letter for bit, letter in zip((8, 4, 2, 1), "ABCD", strict=True) if code & bit
            )
            items.append(("", lexeme(reader) + (f":{weights}".encode() if weights else b"")))
        elif kind == 2 and 1 <= code <= 4:
            distance = reader.i16() if code == 4 else 0
            shown = {1: "!", 2: " & ", 3: " | "}.get(code) or (
                " <-> " if distance == 1 else f" <{distance}> "
            )
            items.append(("!&|<"[code - 1], shown.encode()))
        else:
            raise MalformedError("item")
    reader.end()
    strength = {"": 5, "!": 4, "<": 3, "&": 2, "|": 1}
    built: list[tuple[str, bytes]] = []

    def operand(around: str, on_the_right: bool = False) -> bytes:
        if not built:
            raise MalformedError("operator without an operand")
        kind, text = built.pop()
        weaker = strength[kind] < strength[around] or (kind == around == "<" and on_the_right)
        return b"( " + text + b" )" if weaker else text

    for kind, text in reversed(items):
        if kind == "!":
            text = text + operand("!")
        elif kind:
            right = operand(kind, on_the_right=True)
            text = operand(kind) + text + right
        built.append((kind, text))
    if len(built) > 1:
        raise MalformedError("operands without an operator")
    return string(built[0][1]) if built else ""


# --- unchanged text, if the server can print it ---------------------------------------------------------------


def matching(pattern: str) -> Callable[[bytes], str]:
    def check(raw: bytes) -> str:
        text = raw.decode("latin-1")
        if not re.fullmatch(pattern, text):
            raise MalformedError("text that the server does not print")
        return text

    return check


def counted(raw: bytes, pattern: str, *most: int) -> str:
    text = raw.decode("latin-1")
    match = re.fullmatch(pattern, text)
    if not match or any(
        str(int(n)) != n or int(n) > top for n, top in zip(match.groups(), most, strict=True)
    ):
        raise MalformedError("numbers that the server does not print")
    return text


def address_from_text(raw: bytes, *, is_cidr: bool) -> str:
    text = raw.decode("latin-1")
    address, slash, bits = text.partition("/")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise MalformedError("address") from None
    if not re.fullmatch(r"[0-9a-f.:]+", address) or re.search(r"(?:^|:)0[0-9a-f]+(?=:|$)", address):
        raise MalformedError("address")  # capital letters, zones or leading zeros
    if is_cidr and not slash:
        raise MalformedError("cidr without its prefix")
    if slash and not (
        re.fullmatch(r"[0-9]+", bits) and str(int(bits)) == bits and int(bits) <= parsed.max_prefixlen
    ):
        raise MalformedError("prefix length")
    return text


PRINTED_FROM_TEXT: dict[str, Callable[[bytes], Any]] = {
    "money": money_from_text,
    "interval": interval_from_text,
    "xid": lambda raw: integer(raw, 0, 2**32 - 1),
    "cid": lambda raw: integer(raw, 0, 2**32 - 1),
    "bit": matching("[01]*"),
    "varbit": matching("[01]*"),
    "inet": lambda raw: address_from_text(raw, is_cidr=False),
    "cidr": lambda raw: address_from_text(raw, is_cidr=True),
    "macaddr": matching("[0-9a-f]{2}(:[0-9a-f]{2}){5}"),
    "macaddr8": matching("[0-9a-f]{2}(:[0-9a-f]{2}){7}"),
    "xid8": lambda raw: counted(raw, "([0-9]+)", 2**64 - 1),
    "oid8": lambda raw: counted(raw, "([0-9]+)", 2**64 - 1),
    "char": char_from_text,
    "pg_lsn": lsn_from_text,
    "tid": lambda raw: counted(raw, r"\(([0-9]+),([0-9]+)\)", 2**32 - 1, 2**16 - 1),
}
PRINTED_FROM_BINARY: dict[str, Callable[[bytes], Any]] = {
    "money": lambda raw: Decimal(fixed(raw, "q")).scaleb(-2, Context(prec=40)),
    "interval": interval_from_binary,
    "xid": lambda raw: fixed(raw, "I"),
    "cid": lambda raw: fixed(raw, "I"),
    "char": char_from_binary,
    "tid": tid_from_binary,
    "xid8": lambda raw: str(fixed(raw, "Q")),
    "oid8": lambda raw: str(fixed(raw, "Q")),
    "pg_lsn": lsn_from_binary,
    "pg_snapshot": snapshot_from_binary,
    "txid_snapshot": snapshot_from_binary,
    "oidvector": lambda raw: vector_from_binary(raw, 26, "I"),
    "int2vector": lambda raw: vector_from_binary(raw, 21, "h"),
    "timetz": timetz_from_binary,
    "bit": bits_from_binary,
    "varbit": bits_from_binary,
    "inet": lambda raw: address_from_binary(raw, is_cidr=False),
    "cidr": lambda raw: address_from_binary(raw, is_cidr=True),
    "macaddr": hardware_address(6),
    "macaddr8": hardware_address(8),
    "line": shape("{#,#,#}"),
    "lseg": shape("[(#,#),(#,#)]"),
    "box": shape("(#,#),(#,#)"),
    "circle": shape("<(#,#),#>"),
    "path": path_from_binary,
    "polygon": lambda raw: points(raw, "()"),
    "tsvector": tsvector_from_binary,
    "tsquery": tsquery_from_binary,
    "jsonpath": jsonb_from_binary,
    "aclitem": lambda raw: "\\x" + raw.hex(),
    "gtsvector": lambda raw: "\\x" + raw.hex(),
}
for _name, _ in BUILT_IN.values():
    PRINTED_FROM_TEXT.setdefault(_name, string)
    PRINTED_FROM_BINARY.setdefault(
        _name, (lambda raw: str(fixed(raw, "I"))) if _name.startswith("reg") else string
    )
