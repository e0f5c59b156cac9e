from libc.stdint cimport int64_t, uint8_t, uintptr_t

# Cython does not execute this import. A module that cimports these functions must import pyarrow as pa itself.
import pyarrow as pa

cdef extern from "columns/chunk.hpp" namespace "pgo" nogil:
    cppclass Chunk:
        const uint8_t* validity
        const uint8_t* offsets
        const uint8_t* values
        int64_t offset
        int64_t rows


cdef inline const uint8_t* address_of(buffer) except? NULL:
    cdef uintptr_t address = 0 if buffer is None else buffer.address
    return <const uint8_t*> address


cdef inline int size_of_offset(kind) except -1:
    """Returns the size of an offset in bytes; 0 for types without offsets."""
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_list(kind):
        return 4
    return 8 if types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind) else 0


cdef inline int64_t width_in_bits(kind) except -1:
    """Returns the size of a value in bits; 0 for types without a fixed size."""
    try:
        return kind.bit_width
    except ValueError:
        return 0


cdef inline bint is_flat(kind) except -1:
    """Whether a type has no child or dictionary, and values of fixed size or with offsets."""
    if kind.num_fields or pa.types.is_dictionary(kind):
        return False
    return size_of_offset(kind) > 0 or width_in_bits(kind) > 0


cdef inline Chunk chunk_of(array) except *:
    """Returns the buffers of an array, without those of its children."""
    cdef Chunk chunk
    cdef int size = size_of_offset(array.type)
    buffers = array.buffers()
    chunk.validity = address_of(buffers[0]) if array.null_count else NULL
    chunk.offsets = address_of(buffers[1]) if size else NULL
    chunk.values = NULL
    if not array.type.num_fields:
        chunk.values = address_of(buffers[2 if size else 1])
    chunk.offset = array.offset
    chunk.rows = len(array)
    return chunk
