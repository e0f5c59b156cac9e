from pgoutput_fast._core.columns.native cimport Column, Convert, Issues, Source
from pgoutput_fast._core.protocol.wire cimport Cell


# Only this module contains the converters, so there is a single vector level, which `use_vectors` sets.
cdef Column* make_column(object column_type) except NULL
cdef int convert_column(Column& column, Convert convert, Source source, const Cell* cells, size_t n,
                        Issues& issues) except -1 nogil
