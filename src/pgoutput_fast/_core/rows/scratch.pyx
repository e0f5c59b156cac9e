"""What a thread needs to make rows of one block of cells."""
cimport cython


@cython.final
cdef class Scratch:
    pass
