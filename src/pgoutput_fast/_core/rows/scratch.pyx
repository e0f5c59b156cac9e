"""A thread's working memory for making rows from one block of cells."""
cimport cython


@cython.final
cdef class Scratch:
    pass
