from pgoutput_fast._core.column cimport ArrowArray, Column


cdef ArrowArray* new_array() except NULL
cdef object batch_of(ArrowArray* array, object schema)
cdef object array_of(Column* column, object arrow_type)
