from pgoutput_fast._core.converters cimport Column


cdef Column* make_column(object column_type) except NULL
