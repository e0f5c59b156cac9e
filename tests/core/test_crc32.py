"""The fast CRC-32 gives what zlib gives."""

from __future__ import annotations

import random
import zlib

import pytest

from pgoutput_fast._core.files.crc32 import crc32


def test_it_is_that_of_zlib() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        data, value = chance.randbytes(chance.randrange(3000)), chance.getrandbits(32)
        assert crc32(data, value) == zlib.crc32(data, value)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 320, 1 << 20, (1 << 20) + 15])
def test_parts_give_the_same_as_the_whole(size: int) -> None:
    data = random.Random(size).randbytes(size)
    middle = size // 3
    assert crc32(memoryview(data)[middle:], crc32(data[:middle])) == zlib.crc32(data) == crc32(data)
