"""Stage 5, assemble: buffers -> Arrow, through the Arrow C data interface. Only small batches are copied."""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from pgoutput_fast._core.columns.native cimport ArrowArray, Column, give_column, pack_array

import pyarrow as pa


cdef void _release_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(capsule, "arrow_array")
    # A consumer that took the array has cleared `release`.
    if array.release != NULL:
        array.release(array)
    free(array)


cdef ArrowArray* new_array() except NULL:
    """A zeroed ArrowArray on the heap, which `batch_of` takes over."""
    cdef ArrowArray* array = <ArrowArray*> calloc(1, sizeof(ArrowArray))
    if array == NULL:
        raise MemoryError()
    return array


cdef void drop_array(ArrowArray* array) noexcept:
    """The array and what it holds are gone."""
    if array.release != NULL:
        array.release(array)
    free(array)


cdef class _Exported:
    """Anything that pyarrow (or another Arrow library) can import: a schema and the array it describes."""
    cdef object schema
    cdef object capsule

    def __arrow_c_array__(self, requested_schema=None):
        return self.schema.__arrow_c_schema__(), self.capsule


cdef _Exported _export(ArrowArray* array, object schema):
    cdef _Exported exported = _Exported.__new__(_Exported)
    exported.schema = schema
    exported.capsule = PyCapsule_New(array, "arrow_array", _release_capsule)
    return exported


cdef object batch_of(ArrowArray* array, object schema):
    """A pa.RecordBatch of a struct array whose children are the schema's fields. Takes the array over.

    Its arrays must be what `start_array` and what else is in columns/arrow_array.hpp made.
    """
    try:
        pack_array(array)
        # By its address: with a capsule comes a schema, of which pyarrow would make a new one for every batch. That is
        # 4 kB, and three quarters of the time of the import.
        return pa.RecordBatch._import_from_c(<uintptr_t> array, schema)
    finally:
        drop_array(array)


cdef object exported_column(Column* column, object arrow_type):
    """What one column holds, for any Arrow library to import; the column is empty afterwards."""
    cdef ArrowArray* array = new_array()
    try:
        give_column(column[0], array)
    except BaseException:
        drop_array(array)
        raise
    return _export(array, arrow_type)


cdef object array_of(Column* column, object arrow_type):
    """A pa.Array of what one column holds; the column is empty afterwards."""
    return pa.array(exported_column(column, arrow_type))
