"""CRC-32 at the speed of memory: a file of gigabytes is checked when it is written, and when it is read."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uintptr_t

import zlib

import pyarrow as pa

cdef extern from "files/crc32.hpp" namespace "pgo" nogil:
    bint has_carryless()
    uint32_t crc32_carryless(uint32_t remainder, const uint8_t* p, size_t n)

# A shorter piece of memory is not worth a call. The loop needs 64 bytes.
cdef size_t LEAST = 256


def crc32(data, value=0):
    """Does what `zlib.crc32` does, several times as fast where the processor can."""
    cdef uintptr_t address
    cdef uint32_t remainder
    cdef size_t size
    memory = pa.py_buffer(data)
    size = memory.size
    if size < LEAST or not has_carryless():
        return zlib.crc32(memory, value)
    address = memory.address
    remainder = <uint32_t> value ^ <uint32_t> 0xffffffff
    with nogil:
        remainder = crc32_carryless(remainder, <const uint8_t*> address, size)
    return remainder ^ <uint32_t> 0xffffffff
