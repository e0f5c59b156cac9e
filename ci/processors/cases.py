"""Cells of every type, as the program `cells` reads them: the same input for both processors."""

from __future__ import annotations

import random
import struct
from functools import lru_cache
from pathlib import Path

from cells.every_type import ALL
from cells.nested import EVERY, TYPES
from cells.vector_kinds import KINDS
from pgoutput_fast import Column, Options
from pgoutput_fast.schema.column_types import ColumnType, column_type_of

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "src" / "pgoutput_fast" / "_core"
FLAGS = ["-std=c++17", "-fno-strict-aliasing", "-w", f"-I{CORE}", str(HERE / "cells.cpp")]

ROWS = 300  # more than two chunks
MUTANTS = 100


def counted(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def column(kind: ColumnType) -> bytes:
    leaves = kind.child.leaves() if kind.child is not None and kind.child.fields else 0
    return b"".join(
        [
            counted(kind.kernel.encode()),
            struct.pack("<iiII", kind.precision, kind.scale, kind.element_oid, leaves),
            b"\0" if kind.child is None else b"\1" + column(kind.child),
            struct.pack("<I", len(kind.fields)),
            *(struct.pack("<I", each.oid) + column(each.type) for each in kind.fields),
        ]
    )


def case(level: str, kind: ColumnType, binary: bool, cells: list[bytes | None], times: int = 1) -> bytes:
    lengths = [-1 if cell is None else len(cell) for cell in cells]
    values = b"".join(cell for cell in cells if cell is not None)
    return b"".join(
        [
            counted(level.encode()),
            struct.pack("<I", times),
            column(kind),
            struct.pack("<?I", binary, len(cells)),
            struct.pack(f"<{len(cells)}i", *lengths),
            counted(values),
        ]
    )


@lru_cache
def cases(level: str) -> dict[str, bytes]:
    """Every test cell, alone and among others, and cells in the form that vector loops accept, some of them damaged."""
    found = {}
    for name, cells in {**ALL, **EVERY}.items():
        kind = column_type_of(Column("c", cells.oid, cells.typmod), Options(), TYPES)
        for binary in (False, True):
            good: list[bytes | None] = [each[binary] for each in cells.both]
            good += cells.binary if binary else cells.text
            wrong = [
                *(cells.malformed_binary if binary else cells.malformed_text),
                *(cells.unrepresentable_binary if binary else cells.unrepresentable_text),
            ]
            one_by_one = [case(level, kind, binary, [*good[:3], each, None]) for each in wrong]
            found[f"{name}, {'binary' if binary else 'text'}"] = b"".join(
                [
                    case(level, kind, binary, (good * ROWS)[:ROWS]),
                    case(level, kind, binary, [*good, None] * 9),
                    *one_by_one,
                ]
            )
    for name, (oid, typmod, binary, make) in KINDS.items():
        rng = random.Random(name)
        for options in (Options(), Options(uuid="fixed_size_binary", numeric="float64")):
            kind = column_type_of(Column("c", oid, typmod), options)
            cells_of = [make(rng) for _ in range(ROWS)]
            parts = [case(level, kind, binary, list(cells_of))]
            for _ in range(MUTANTS):
                spoilt: list[bytes | None] = list(cells_of[:40])
                at = rng.randrange(40)
                spoilt[at] = mutated(rng, cells_of[at])
                parts.append(case(level, kind, binary, spoilt))
            with_nulls = [cell if rng.random() < 0.7 else None for cell in cells_of]
            found[f"{name}, {kind.kernel}, made"] = b"".join([*parts, case(level, kind, binary, with_nulls)])
    return found


def mutated(rng: random.Random, cell: bytes) -> bytes:
    data = bytearray(cell)
    for _ in range(rng.randrange(1, 4)):
        what = rng.randrange(3)
        at = rng.randrange(len(data) + 1)
        if what == 0 and at < len(data):
            data[at] = rng.choice(b"0123456789abcdefgAF-. :+\0\x7f\x80\xff" + bytes([rng.randrange(256)]))
        elif what == 1 and at < len(data):
            del data[at]
        else:
            data.insert(at, rng.choice(b"0159af-.g "))
    return bytes(data)
