from pgoutput_fast._core.columns.native cimport ArrowArray, Column


cdef ArrowArray* new_array() except NULL
cdef void drop_array(ArrowArray* array) noexcept
cdef object batch_of(ArrowArray* array, object schema)
cdef object exported_column(Column* column, object arrow_type)
cdef object array_of(Column* column, object arrow_type)
