"""Types of extensions for the reference decoder: hstore, ltree, cube, and those of pgvector and PostGIS."""

from __future__ import annotations

import itertools
import re
import struct
from typing import Any

from pgoutput_fast.encode.values import to_text
from reference.bytes import MalformedError, Reader, string
from reference.printed import printed_float

PAIR = re.compile(r'"((?:[^"\\]|\\["\\])*)"=>(?:(NULL)|"((?:[^"\\]|\\["\\])*)")', re.DOTALL)
ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def in_order(pairs: list[tuple[bytes, bytes | None]]) -> list[tuple[str, str | None]]:
    keys = [(len(key), key) for key, _ in pairs]
    if any(one >= other for one, other in itertools.pairwise(keys)):
        raise MalformedError("keys of hstore out of order")
    return [(string(key), None if value is None else string(value)) for key, value in pairs]


def hstore_from_text(raw: bytes) -> list[tuple[str, str | None]]:
    text, at = string(raw), 0
    pairs: list[tuple[bytes, bytes | None]] = []
    while at < len(text):
        if pairs:
            if not text.startswith(", ", at):
                raise MalformedError("hstore without a comma")
            at += 2
        match = PAIR.match(text, at)
        if match is None:
            raise MalformedError("pair of hstore")
        key, null, value = (each and ESCAPED.sub(r"\1", each) for each in match.groups())
        pairs.append((key.encode(), None if null else value.encode()))
        at = match.end()
    return in_order(pairs)


def hstore_from_binary(raw: bytes) -> list[tuple[str, str | None]]:
    reader = Reader(raw)
    count = reader.i32()
    if not 0 <= count <= len(raw):
        raise MalformedError("number of pairs of hstore")
    pairs: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        key = reader.take(reader.i32())
        length = reader.i32()
        pairs.append((key, None if length == -1 else reader.take(length)))
    reader.end()
    return in_order(pairs)


def vector_from_text(raw: bytes) -> list[bytes]:
    if len(raw) < 3 or raw[:1] != b"[" or raw[-1:] != b"]":
        raise MalformedError("vector")
    return raw[1:-1].split(b",")


def vector_from_binary(raw: bytes, width: int) -> list[bytes]:
    reader = Reader(raw)
    count = reader.u16()
    if not count or reader.u16():
        raise MalformedError("header of a vector")
    numbers = [reader.take(width) for _ in range(count)]
    reader.end()
    return numbers


def half_from_binary(raw: bytes) -> float:
    return float(struct.unpack(">e", raw)[0])


def sparsevec_from_binary(raw: bytes) -> str:
    reader = Reader(raw)
    size, count, unused = (reader.i32() for _ in range(3))
    if not 0 <= count <= size or size < 1 or unused or len(raw) != 12 + 8 * count:
        raise MalformedError("header of a sparsevec")
    indices = [reader.i32() for _ in range(count)]
    if sorted({*indices}) != indices or any(not 0 <= index < size for index in indices):
        raise MalformedError("indices of a sparsevec")
    values = [struct.unpack(">f", reader.take(4))[0] for _ in range(count)]
    reader.end()
    pairs = (f"{index + 1}:{to_text('float4', value)}" for index, value in zip(indices, values, strict=True))
    return f"{{{','.join(pairs)}}}/{size}"


def cube_from_binary(raw: bytes) -> str:
    reader = Reader(raw)
    header = reader.u32()
    size, is_point = header & 0x7FFFFFFF, header >> 31
    if size > 100 or len(raw) != 4 + 8 * size * (1 if is_point else 2):
        raise MalformedError("header of a cube")
    numbers = [struct.unpack(">d", reader.take(8))[0] for _ in range(size if is_point else 2 * size)]
    corners = [numbers[:size], numbers[size:]]
    if is_point or all(one == other for one, other in zip(*corners, strict=True)):
        del corners[1]
    return ",".join(f"({', '.join(map(printed_float, corner))})" for corner in corners)


def geometry_from_text(raw: bytes) -> bytes:
    if len(raw) % 2 or not re.fullmatch(rb"[0-9A-F]*", raw):
        raise MalformedError("geometry")
    return bytes.fromhex(raw.decode())


FROM_TEXT: dict[str, Any] = {
    "hstore": hstore_from_text,
    "ltree": string,
    "sparsevec": string,
    "cube": string,
    "geometry": geometry_from_text,
}
FROM_BINARY: dict[str, Any] = {
    "hstore": hstore_from_binary,
    "sparsevec": sparsevec_from_binary,
    "cube": cube_from_binary,
    "geometry": lambda raw: raw,
}
__all__ = ["FROM_BINARY", "FROM_TEXT", "half_from_binary", "vector_from_binary", "vector_from_text"]
