"""Plans for the rows of a relation version: everything that follows from its columns and the options."""
cimport cython
from libc.stdint cimport int64_t, uint8_t

from pgoutput_fast._core.protocol.limits cimport BLOCK_BYTES

import functools

import pyarrow as pa

from pgoutput_fast.schema.column_types import column_types_of
from pgoutput_fast.schema.tables import relation_schema

# Maximum factor by which blocks with arrays of composites are smaller than other blocks.
cdef int64_t WIDEST = 32


@cython.final
cdef class RowsPlan:
    def __cinit__(self, relation, options, types):
        cdef uint8_t is_selected
        self.column_types = column_types_of(relation.columns, options, types)
        self.schema = self.built_schema = relation_schema(relation, self.column_types, options)
        if options.strings == "string_view":
            # These columns are built as strings, and cast when the batch is finished.
            self.built_schema = pa.schema(
                [pa.field(f.name, pa.string()) if pa.types.is_string_view(f.type) else f for f in self.schema]
            )
        self.column_names = [column.name.encode() for column in relation.columns]
        chosen = options.columns_of(relation)
        self.selected_count = 0
        for column in relation.columns:
            self.type_oids.push_back(column.type_oid)
            is_selected = chosen is None or column.name in chosen
            self.is_selected.push_back(is_selected)
            self.selected_count += is_selected
        self.leaves = sum([column_type.leaves() for column_type in self.column_types])
        self.nested = any([each.child is not None or each.fields for each in self.column_types])
        widest = max([each.child.leaves() for each in self.column_types if each.child is not None], default=1)
        self.block_bytes = BLOCK_BYTES // <int64_t> min(widest, WIDEST)


_plan = functools.lru_cache(maxsize=1024)(RowsPlan)


cdef RowsPlan plan_of(relation, options, types):
    """Returns the plan for a relation version. It is cached.

    Raises:
        ValueError: if a column has the name of a metadata column.
    """
    return _plan(relation, options, types)
