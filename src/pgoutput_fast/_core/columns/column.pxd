from pgoutput_fast._core.columns.native cimport Column, Convert, Issues, Source
from pgoutput_fast._core.protocol.wire cimport Cell


# All converters are compiled into this module alone. So there is one level of vector loops, which `use_vectors` sets.
cdef Column* make_column(object column_type) except NULL
cdef int convert_column(Column& column, Convert convert, Source source, const Cell* cells, size_t n,
                        Issues& issues) except -1 nogil
