"""Guarded memory, where a read beyond the end fails, and Arrow arrays in this memory with arbitrary claimed properties.

A read beyond the end of a buffer kills the process. So run the code under test in a separate process.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(data: bytes) -> pa.Buffer:
    """The bytes at the very end of readable memory."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, (len(data) + page - 1) // page * page + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    end = address + len(memory) - page
    if _LIBC.mprotect(end, page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    memory[len(memory) - page - len(data) : len(memory) - page] = data
    return pa.foreign_buffer(end - len(data), len(data), base=memory)


def array_of(
    kind: pa.DataType, length: int, buffers: Sequence[bytes | None], *, nulls: int = -1, offset: int = 0
) -> pa.Array:
    """An array that claims these properties.

    It is unpickled, because Arrow trusts pickles and files. `from_buffers` would check the lengths.
    """
    places = [None if each is None else guarded(each) for each in buffers]
    restore, _ = pa.array([], kind).__reduce__()
    return restore((kind, length, nulls, offset, places, [], None))


def batch_of(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """A record batch of columns without any check. `from_arrays` would check them."""
    restore, _ = pa.array([], pa.int8()).__reduce__()
    children = [column.__reduce__()[1][0] for column in columns]
    count = len(columns[0])
    return pa.RecordBatch.from_struct_array(
        restore((pa.struct(list(schema)), count, 0, 0, [None], children, None))
    )


def parts_of(array: pa.Array) -> list[bytes | None]:
    """The bytes of an array's buffers, cut to the needed length where it is easy to compute."""
    parts = [None if each is None else each.to_pybytes() for each in array.buffers()]
    end = array.offset + len(array)
    kind = array.type
    if parts[0] is not None:
        parts[0] = parts[0][: (end + 7) // 8]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        width = 8 if pa.types.is_large_binary(kind) else 4
        parts[1] = None if parts[1] is None else parts[1][: (end + 1) * width]
    elif pa.types.is_boolean(kind) and parts[1] is not None:
        parts[1] = parts[1][: (end + 7) // 8]
    elif pa.types.is_primitive(kind) and parts[1] is not None:
        parts[1] = parts[1][: end * kind.bit_width // 8]
    return parts


def damaged(rng: random.Random, array: pa.Array, *, lengths: bool = True) -> pa.Array:
    """The array in guarded memory, with up to three kinds of damage. With `lengths` its length may change, too."""
    parts, length, offset, nulls = parts_of(array), len(array), array.offset, array.null_count
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        way = rng.randrange(8)
        at = rng.randrange(len(parts))
        part = parts[at]
        if way == 0:
            parts[at] = None
        elif way == 1 and part:
            parts[at] = part[: rng.choice([0, len(part) - 1, len(part) // 2, rng.randrange(len(part))])]
        elif way in (2, 3) and part and len(part) >= 8:
            place = rng.randrange(len(part) // 8) * 8
            edge = rng.choice([-1, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, 1 << 40, 0, 5])
            word = (edge & ((1 << 64) - 1)).to_bytes(8, "little")
            parts[at] = part[:place] + word + part[place + 8 :]
        elif way == 4 and part and len(part) >= 4:
            place = rng.randrange(len(part) // 4) * 4
            edge = rng.choice([-1, 1 << 20, (1 << 31) - 1, -(1 << 31), 0, 5, rng.randrange(1 << 8)])
            parts[at] = part[:place] + (edge & 0xFFFFFFFF).to_bytes(4, "little") + part[place + 4 :]
        elif way == 5 and lengths:
            length = rng.choice([0, len(array) + 1, 2 * len(array), 1 << 31, (1 << 63) - 1, -1])
        elif way == 6:
            offset = rng.choice([0, 1, 2, -1, 1 << 31, (1 << 63) - 1, -(1 << 63)])
        elif way == 7:
            nulls = rng.choice([0, 1, -1, len(array), -7, 1 << 62])
    return array_of(array.type, length, parts, nulls=nulls, offset=offset)


def damaged_batch(rng: random.Random, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with one or two damaged columns."""
    columns: list[Any] = list(batch.columns)
    # Each column once, because a damaged column cannot be inspected.
    for at in rng.sample(range(len(columns)), min(rng.choice([1, 1, 2]), len(columns))):
        columns[at] = damaged(rng, columns[at], lengths=False)
    return batch_of(columns, batch.schema)
