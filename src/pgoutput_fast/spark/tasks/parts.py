"""What each range of a stream needs, packed by itself: a task unpacks only that of its own ranges.

Imports no PySpark; the driver pickles the instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Parts"]

# Spark divides a broadcast variable into pieces of this size.
_JOINED_BYTES = 4 << 20
# Fewer bytes are pickled with the task, which costs it less than a broadcast variable.
_LEAST_SHARED = 256 << 10


class _Block(Protocol):
    """A broadcast variable of Spark: a worker loads its value when it is first used."""

    @property
    def value(self) -> bytes: ...


@dataclass(frozen=True)
class _Inline:
    """A block that is pickled with the task."""

    value: bytes


@dataclass(frozen=True)
class Parts:
    """Bytes by number.

    Attributes:
        blocks: the bytes.
        places: for each number, its block, and where its bytes begin and end there.
    """

    blocks: tuple[_Block, ...]
    places: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, parts: Iterable[bytes], share: Callable[[bytes], _Block] | None = None) -> Parts:
        """Joins parts to blocks.

        Args:
            parts: the bytes of each number.
            share: makes a broadcast variable; None to pickle all blocks with the task.
        """
        blocks: list[_Block] = []
        places: list[tuple[int, int, int]] = []
        block = bytearray()

        def close() -> None:
            is_small = len(block) < _LEAST_SHARED
            blocks.append(_Inline(bytes(block)) if share is None or is_small else share(bytes(block)))
            block.clear()

        for part in parts:
            if block and len(block) + len(part) > _JOINED_BYTES:
                close()
            places.append((len(blocks), len(block), len(block) + len(part)))
            block += part
        close()
        return cls(tuple(blocks), tuple(places))

    def __getitem__(self, number: int) -> bytes:
        block, begin, end = self.places[number]
        return self.blocks[block].value[begin:end]
