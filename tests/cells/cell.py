"""The class for a type's cells, and two binary forms that cells of many types contain."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field


def numeric(weight: int, sign: int, dscale: int, *digits: int) -> bytes:
    """The bytes of numeric_send: digits of base 10000; the first digit counts 10000 ** weight."""
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign, dscale, *digits)


def array(element_oid: int, *elements: bytes | None, lower: int = 1, flags: int | None = None) -> bytes:
    """The bytes of array_send for an array with one dimension."""
    head = struct.pack(
        ">iiIii", 1, (None in elements) if flags is None else flags, element_oid, len(elements), lower
    )
    return head + b"".join(
        struct.pack(">i", -1) if e is None else struct.pack(">i", len(e)) + e for e in elements
    )


EMPTY_ARRAY = struct.pack(">ii", 0, 0)


@dataclass(frozen=True)
class Cells:
    """Cells of a type in both formats. `both` has pairs of the same value: (text, binary)."""

    oid: int
    typmod: int = -1
    both: list[tuple[bytes, bytes]] = field(default_factory=list)
    text: list[bytes] = field(default_factory=list)
    binary: list[bytes] = field(default_factory=list)
    unrepresentable_text: list[bytes] = field(default_factory=list)
    unrepresentable_binary: list[bytes] = field(default_factory=list)
    malformed_text: list[bytes] = field(default_factory=list)
    malformed_binary: list[bytes] = field(default_factory=list)
