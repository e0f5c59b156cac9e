"""Stage 5, assemble: hands buffers over as Arrow arrays, through the C data interface. It copies only small batches."""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from pgoutput_fast._core.columns.native cimport ArrowArray, Column, give_column, pack_array

import pyarrow as pa


cdef void _release_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(capsule, "arrow_array")
    # A consumer that moved the array out has cleared `release`.
    if array.release != NULL:
        array.release(array)
    free(array)


cdef ArrowArray* new_array() except NULL:
    """Returns a zeroed ArrowArray on the heap. Pass it to `batch_of` or `drop_array`, which free it."""
    cdef ArrowArray* array = <ArrowArray*> calloc(1, sizeof(ArrowArray))
    if array == NULL:
        raise MemoryError()
    return array


cdef void drop_array(ArrowArray* array) noexcept:
    """Releases the array's contents and frees the array itself."""
    if array.release != NULL:
        array.release(array)
    free(array)


cdef class _Exported:
    """An array and its schema, in a form that pyarrow or any other Arrow library can import."""
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
    """Makes a pa.RecordBatch of a struct array whose children are the schema's fields. Frees the array.

    The array and its children must come from the functions of columns/arrow_array.hpp.
    """
    try:
        pack_array(array)
        # Imports the array by its address. An import through capsules also passes a schema, and pyarrow would make a
        # new schema object for every batch: 4 kB, and three quarters of the import's time.
        return pa.RecordBatch._import_from_c(<uintptr_t> array, schema)
    finally:
        drop_array(array)


cdef object exported_column(Column* column, object arrow_type):
    """Exports the contents of one column for any Arrow library to import. The column is empty afterwards."""
    cdef ArrowArray* array = new_array()
    try:
        give_column(column[0], array)
    except BaseException:
        drop_array(array)
        raise
    return _export(array, arrow_type)


cdef object array_of(Column* column, object arrow_type):
    """Makes a pa.Array of the contents of one column. The column is empty afterwards."""
    return pa.array(exported_column(column, arrow_type))
