"""Binary forms from the server's text output, for types that are decoded to this text: the inverse of decoding.

`PRINTED` maps a type's name to its two writers, value -> binary and value -> text.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal, InvalidOperation

from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
from pgoutput_fast.protocol.lsn import format_lsn, parse_lsn

__all__ = ["PRINTED"]

_Writers = tuple[Callable[[object], bytes], Callable[[object], str]]


def _of_text(type_name: str, parse: Callable[[str], bytes]) -> _Writers:
    def binary(value: object) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"{type_name} does not take this Python type")
        try:
            return parse(value)
        except (ValueError, IndexError, struct.error, UnicodeError):
            raise ValueError(f"value is not what a server prints for {type_name}") from None

    def text(value: object) -> str:
        binary(value)
        assert isinstance(value, str)  # by binary
        return value

    return binary, text


def _match(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text, re.ASCII | re.DOTALL)
    if match is None:
        raise ValueError
    return match


# --- system types -------------------------------------------------------------------------------------------


def _char(text: str) -> bytes:
    if octal := re.fullmatch(r"\\([2-3][0-7]{2})", text):
        return bytes([int(octal[1], 8)])
    return _match("[\x01-\x7f]?", text)[0].encode() or b"\0"


def _lsn(text: str) -> bytes:
    position = parse_lsn(text)
    # Servers since version 19 print eight digits after the slash.
    if text not in (format_lsn(position), f"{position >> 32:X}/{position & 0xFFFFFFFF:08X}"):
        raise ValueError
    return struct.pack(">Q", position)


def _tid(text: str) -> bytes:
    match = _match(r"\(([0-9]+),([0-9]+)\)", text)
    return struct.pack(">IH", int(match[1]), int(match[2]))


def _xid8(text: str) -> bytes:
    return struct.pack(">Q", int(_match("[0-9]+", text)[0]))


def _oid(text: str) -> bytes:
    """Of a reg*: only digits, because names need the server's catalogs."""
    return struct.pack(">I", 0 if text == "-" else int(_match("[0-9]+", text)[0]))


def _snapshot(text: str) -> bytes:
    match = _match("([0-9]+):([0-9]+):([0-9,]*)", text)
    running = [int(xid) for xid in match[3].split(",")] if match[3] else []
    return struct.pack(f">iQQ{len(running)}Q", len(running), int(match[1]), int(match[2]), *running)


def _vector(element_oid: int, code: str) -> Callable[[str], bytes]:
    def parse(text: str) -> bytes:
        elements = [struct.pack(f">{code}", int(each)) for each in text.split(" ")] if text else []
        head = struct.pack(">iiIii", 1, 0, element_oid, len(elements), 0)
        return head + b"".join(struct.pack(">i", len(each)) + each for each in elements)

    return parse


# The one zone without a 32-bit opposite, as servers from 14 on print it, and as 10 does.
_ZONE_OF_MINIMUM = ("+4294370773:4294967282:4294967288", "+-596523:-14:-8")


def _timetz(text: str) -> bytes:
    match = _match(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?([+-].*)", text)
    hours, minutes, seconds = (int(part) for part in match.group(1, 2, 3))
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((match[4] or "").ljust(6, "0"))
    if micros > 86_400_000_000 or minutes > 59 or seconds > 59:
        raise ValueError
    return struct.pack(">qi", micros, _seconds_west(match[5]))


def _seconds_west(zone: str) -> int:
    """Of a printed zone: any 32-bit number."""
    if zone in _ZONE_OF_MINIMUM:
        return -(1 << 31)
    match = _match(r"([+-])([0-9]{2}|[1-9][0-9]{2,5})(?::([0-5][0-9]))?(?::([0-5][0-9]))?", zone)
    east = (int(match[2]) * 60 + int(match[3] or 0)) * 60 + int(match[4] or 0)
    if east >= 1 << 31:
        raise ValueError
    return -east if match[1] == "+" else east


def _bits(text: str) -> bytes:
    bits = _match("[01]*", text)[0]
    padded = bits.ljust(-(-len(bits) // 8) * 8, "0")
    return struct.pack(">i", len(bits)) + bytes(int(padded[at : at + 8], 2) for at in range(0, len(bits), 8))


# --- network ------------------------------------------------------------------------------------------------


def _address(is_cidr: bool) -> Callable[[str], bytes]:
    def parse(text: str) -> bytes:
        if is_cidr and "/" not in text:
            raise ValueError
        address = ipaddress.ip_interface(text)
        family = 2 if address.version == 4 else 3
        packed = address.ip.packed
        return struct.pack(">4B", family, address.network.prefixlen, is_cidr, len(packed)) + packed

    return parse


def _hardware(size: int) -> Callable[[str], bytes]:
    return lambda text: bytes.fromhex(
        _match(f"[0-9a-f]{{2}}(:[0-9a-f]{{2}}){{{size - 1}}}", text)[0].replace(":", "")
    )


# --- geometry -----------------------------------------------------------------------------------------------

_FLOAT = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?|Infinity)|NaN")


def _numbers(text: str, shape: str) -> bytes:
    """The numbers in a text that matches `shape`, in which # stands for a number."""
    _match(shape, _FLOAT.sub("#", text))
    numbers = [float(number) for number in _FLOAT.findall(text)]
    return struct.pack(f">{len(numbers)}d", *numbers)


def _shape(shape: str) -> Callable[[str], bytes]:
    return lambda text: _numbers(text, shape)


def _polygon(text: str) -> bytes:
    points = _numbers(text, r"\(\(#,#\)(,\(#,#\))*\)")
    return struct.pack(">i", len(points) // 16) + points


def _path(text: str) -> bytes:
    if text.startswith("("):
        return b"\1" + _polygon(text)
    points = _numbers(text, r"\[\(#,#\)(,\(#,#\))*\]")
    return struct.pack(">bi", 0, len(points) // 16) + points


# --- text search --------------------------------------------------------------------------------------------

_LEXEME = r"'((?:[^'\\]|''|\\\\)*)'"


def _lexeme(quoted: str) -> bytes:
    return quoted.replace("''", "'").replace("\\\\", "\\").encode() + b"\0"


def _tsvector(text: str) -> bytes:
    word = _LEXEME + r"(?::([0-9ABC,]+))?"
    _match(f"(?:{word}(?: {word})*)?", text)
    parts = []
    for lexeme, positions in re.findall(word, text):
        matches = re.findall("([0-9]+)([ABC]?)", positions)
        entries = [
            int(position) | {"": 0, "C": 1, "B": 2, "A": 3}[weight] << 14 for position, weight in matches
        ]
        parts.append(_lexeme(lexeme) + struct.pack(f">H{len(entries)}H", len(entries), *entries))
    return struct.pack(">i", len(parts)) + b"".join(parts)


_QUERY_TOKEN = re.compile(rf"{_LEXEME}(?::(\*?)([ABCD]*))?|(!)|\( | \)| ([&|]|<->|<[0-9]+>) ")
_PRIORITY = {"|": 1, "&": 2, "<": 3}


def _tsquery(text: str) -> bytes:
    """Operators of equal priority are left-associative. The output is in prefix order, right operand first."""
    operands: list[list[bytes]] = []
    operators: list[str] = []

    def reduce() -> None:
        operator = operators.pop()
        right = operands.pop()
        if operator == "!":
            operands.append([b"\2\1", *right])
            return
        left = operands.pop()
        code = {"&": b"\2\2", "|": b"\2\3"}.get(operator)
        if code is None:
            code = b"\2\4" + struct.pack(">h", 1 if operator == "<->" else int(operator[1:-1]))
        operands.append([code, *right, *left])

    at = 0
    while at < len(text):
        token = _QUERY_TOKEN.match(text, at)
        if token is None:
            raise ValueError
        at = token.end()
        lexeme, prefix, weights, negation, operator = token.groups()
        if lexeme is not None:
            bits = sum({"A": 8, "B": 4, "C": 2, "D": 1}[letter] for letter in weights or "")
            operands.append([bytes([1, bits, bool(prefix)]) + _lexeme(lexeme)])
            while operators and operators[-1] == "!":
                reduce()
        elif negation or token[0] == "( ":
            operators.append(token[0])
        elif operator:
            while (
                operators and operators[-1] != "( " and _PRIORITY[operators[-1][0]] >= _PRIORITY[operator[0]]
            ):
                reduce()
            operators.append(operator)
        else:
            while operators[-1] != "( ":
                reduce()
            operators.pop()
            while operators and operators[-1] == "!":
                reduce()
    while operators:
        reduce()
    if len(operands) > 1:
        raise ValueError
    items = operands[0] if operands else []
    return struct.pack(">i", len(items)) + b"".join(items)


# --- money and interval -------------------------------------------------------------------------------------


def _cents(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (Decimal, int, str)):
        raise TypeError("money does not take this Python type")
    try:
        cents = Decimal(value).scaleb(2)
    except InvalidOperation:
        raise ValueError("value is not a number for money") from None
    if not cents.is_finite() or cents != int(cents) or not -(2**63) <= int(cents) < 2**63:
        raise ValueError("value is out of range for money")
    return int(cents)


def _money_text(value: object) -> str:
    cents = _cents(value)
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02d}"


_INFINITIES = {
    "infinity": (2**31 - 1, 2**31 - 1, 2**63 - 1),
    "-infinity": (-(2**31), -(2**31), -(2**63)),
}


def _interval_parts(value: object) -> tuple[int, int, int]:
    """Months, days, microseconds."""
    if isinstance(value, timedelta):
        return 0, value.days, value.seconds * 1_000_000 + value.microseconds
    if isinstance(value, str):
        if value not in _INFINITIES:
            raise ValueError('a str for interval must be "infinity" or "-infinity"')
        return _INFINITIES[value]
    if not isinstance(value, tuple) or len(value) != 3 or not all(type(part) is int for part in value):
        raise TypeError("interval does not take this Python type")
    months, days, nanos = value
    micros, rest = divmod(nanos, 1000)
    if rest or not all(-(2**31) <= part < 2**31 for part in (months, days)) or not -(2**63) <= micros < 2**63:
        raise ValueError("value is out of range for interval")
    return months, days, micros


def _interval_binary(value: object) -> bytes:
    months, days, micros = _interval_parts(value)
    return struct.pack(">qii", micros, days, months)


def _interval_text(value: object) -> str:
    if isinstance(value, str):
        _interval_parts(value)
        return value
    months, days, micros = _interval_parts(value)
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    text = ""
    sign = ""  # of a positive field after a negative one
    for amount, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        if amount:
            text += f"{' ' if text else ''}{sign if amount > 0 else ''}{amount} {unit}{'s' * (amount != 1)}"
            sign = "+" if amount < 0 else ""
    if micros or not text:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        clock += f".{fraction:06d}".rstrip("0") if fraction else ""
        text += f"{' ' if text else ''}{'-' if micros < 0 else sign}{clock}"
    return text


_PARSERS: dict[str, Callable[[str], bytes]] = {
    "char": _char,
    "tid": _tid,
    "xid8": _xid8,
    "oid8": _xid8,
    "pg_lsn": _lsn,
    "pg_snapshot": _snapshot,
    "txid_snapshot": _snapshot,
    "oidvector": _vector(OID_OF_NAME["oid"], "I"),
    "int2vector": _vector(OID_OF_NAME["int2"], "h"),
    "timetz": _timetz,
    "bit": _bits,
    "varbit": _bits,
    "inet": _address(is_cidr=False),
    "cidr": _address(is_cidr=True),
    "macaddr": _hardware(6),
    "macaddr8": _hardware(8),
    "line": _shape(r"\{#,#,#\}"),
    "lseg": _shape(r"\[\(#,#\),\(#,#\)\]"),
    "box": _shape(r"\(#,#\),\(#,#\)"),
    "circle": _shape(r"<\(#,#\),#>"),
    "polygon": _polygon,
    "path": _path,
    "tsvector": _tsvector,
    "tsquery": _tsquery,
}
for _name in (
    "proc", "procedure", "oper", "operator", "class", "type", "config", "dictionary", "namespace", "role", "collation",
    "database",
):  # fmt: skip
    _PARSERS[f"reg{_name}"] = _oid

PRINTED: dict[str, _Writers] = {name: _of_text(name, parse) for name, parse in _PARSERS.items()}
PRINTED["money"] = (lambda value: struct.pack(">q", _cents(value)), _money_text)
PRINTED["interval"] = (_interval_binary, _interval_text)
