"""Makes the tables beside the changes from records: transactions, outcomes, truncates, messages and rejects."""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

from pgoutput_fast._core.columns.assemble cimport batch_of, drop_array, new_array
from pgoutput_fast._core.columns.native cimport (
    BITS,
    BYTES,
    FIXED,
    LIST,
    ArrayOwner,
    ArrowArray,
    Column,
    Layout,
    append_bits,
    give_column,
    start_array,
)
from pgoutput_fast._core.protocol.kinds cimport COLUMN_BINARY, COLUMN_TEXT
from pgoutput_fast._core.protocol.limits cimport MAX_OFFSET
from pgoutput_fast._core.tagging.stream_state cimport (
    NONE64,
    BoundaryRecord,
    MessageRecord,
    OutcomeRecord,
    RecordReader,
    Records,
    RejectRecord,
    Slice,
    TruncateRecord,
)

import pyarrow as pa

from pgoutput_fast.schema.metadata_columns import CHANGE_TYPES
from pgoutput_fast.base.errors import reason_text
from pgoutput_fast.protocol.kinds import BOUNDARIES, KIND_NAMES
from pgoutput_fast.schema.tables import (
    MESSAGES_SCHEMA,
    OUTCOMES_SCHEMA,
    REJECTS_SCHEMA,
    TRANSACTIONS_SCHEMA,
    TRUNCATES_SCHEMA,
)
from pgoutput_fast.schema.column_types import column_type_of


cdef dict LAYOUTS = {}


cdef list _layouts(schema):
    """Returns (layout, width) of every column. The result is cached, because asking pyarrow is slow."""
    cdef list found
    if id(schema) not in LAYOUTS:
        found = []
        for field in schema:
            if pa.types.is_boolean(field.type):
                found.append((<int> BITS, 0))
            elif pa.types.is_string(field.type) or pa.types.is_binary(field.type):
                found.append((<int> BYTES, 0))
            elif pa.types.is_list(field.type):
                found.append((<int> LIST, 0))
            else:
                found.append((<int> FIXED, field.type.byte_width))
        LAYOUTS[id(schema)] = (schema, found)
    return LAYOUTS[id(schema)][1]


@cython.final
cdef class TableBuilder:
    def __cinit__(self, schema):
        cdef Column* column
        cdef int layout, width
        self.schema = schema
        self.columns.reserve(<size_t> len(schema))
        for layout, width in _layouts(schema):
            column = new Column()
            self.columns.push_back(column)
            column.layout = <Layout> layout
            column.width = width
            if layout == <int> LIST:
                column.child.reset(new Column())
                column.child.get().layout = FIXED
                column.child.get().width = 8

    def __dealloc__(self):
        cdef size_t k
        for k in range(self.columns.size()):
            del self.columns[k]

    cdef int put_int(self, int k, int64_t value) except -1 nogil:
        """Appends a value to a FIXED column; NONE64 is null."""
        cdef Column* column = self.columns[k]
        cdef uint8_t there = value != NONE64
        if not there:
            value = 0
        # The low bytes of a little-endian integer are the narrower integer.
        memcpy(column.data.append_uninitialized(column.width), &value, column.width)
        column.append_validity(&there, 1)
        return 0

    cdef int put_bytes(self, int k, const uint8_t* p, int64_t length) except -1 nogil:
        """Appends a string or binary value; a negative length is null."""
        cdef Column* column = self.columns[k]
        cdef uint8_t there = length >= 0
        cdef int32_t* offsets = column.reserve_offsets(1)
        if there:
            if <int64_t> column.data.size() + length > MAX_OFFSET:
                with gil:
                    raise OverflowError("more than 2 GiB in one column: pass fewer payloads to a call")
            column.data.append(p, <size_t> length)
        offsets[1] = <int32_t> column.data.size()
        column.append_validity(&there, 1)
        return 0

    cdef int put_text(self, int k, object text) except -1:
        cdef bytes encoded
        if text is None:
            return self.put_bytes(k, NULL, -1)
        encoded = text.encode()
        return self.put_bytes(k, <const uint8_t*> <const char*> encoded, len(encoded))

    cdef int put_bool(self, int k, int value) except -1 nogil:
        """Appends 0, 1, or -1 for null."""
        cdef Column* column = self.columns[k]
        cdef uint8_t there = value >= 0
        cdef uint8_t bit = value > 0
        append_bits(column.data, column.rows, &bit, 1)
        column.append_validity(&there, 1)
        return 0

    cdef int put_ints(self, int k, const int64_t* values, int64_t count) except -1 nogil:
        cdef Column* column = self.columns[k]
        cdef Column* child = column.child.get()
        cdef int32_t* offsets = column.reserve_offsets(1)
        child.data.append(values, <size_t> count * 8)
        child.append_validity(NULL, <size_t> count)
        offsets[1] = <int32_t> child.rows
        column.append_validity(NULL, 1)
        return 0

    cdef object finish(self):
        cdef ArrowArray* array = new_array()
        cdef size_t k
        cdef size_t rows = self.columns[0].rows
        cdef ArrayOwner* owner
        try:
            owner = start_array(array, <int64_t> rows, 0, 1, self.columns.size())
            for k in range(self.columns.size()):
                give_column(self.columns[k][0], &owner.children[k])
        except BaseException:
            drop_array(array)
            raise
        return batch_of(array, self.schema)


@cython.final
cdef class RecordTables:
    """Keeps the records of a call. It makes a table from them on first access."""

    def __cinit__(self):
        self.versions = []
        self.made = {}

    cdef const uint8_t* at(self, Slice s) noexcept nogil:
        return self.records.bytes_of(s)

    cdef int put_slice(self, TableBuilder t, int k, Slice s) except -1 nogil:
        return t.put_bytes(k, self.at(s), s.length)

    @property
    def known(self):
        """The relation versions known after the call, in the order of their first description."""
        return self.versions[:self.version_count]

    @property
    def unknown_outcomes(self):
        """Keys of transactions with unknown outcome."""
        return [self.records.unknown_outcomes[i] for i in range(<int> self.records.unknown_outcomes.size())]

    @property
    def voided(self):
        """Keys of whole transactions that were aborted or became void."""
        cdef OutcomeRecord o
        cdef list found = []
        cdef RecordReader[OutcomeRecord] reader
        reader.begin(self.records.outcomes)
        while reader.next(o):
            if not o.committed and o.subxid == NONE64:
                found.append(o.txn)
        return found

    def outcome_columns(self):
        """Returns the outcomes of whole transactions, and those of subtransactions.

        Whole transactions: [txn, at_seq, commit_lsn, commit_timestamp, committed], each as the bytes of an int64 array.
        Subtransactions that were rolled back: [(txn, subxid, at_seq)].
        """
        cdef OutcomeRecord o
        cdef vector[int64_t] columns[5]
        cdef list rolled_back = []
        cdef RecordReader[OutcomeRecord] reader
        reader.begin(self.records.outcomes)
        while reader.next(o):
            if o.subxid != NONE64:
                rolled_back.append((o.txn, o.subxid, o.at_seq))
                continue
            columns[0].push_back(o.txn)
            columns[1].push_back(o.at_seq)
            columns[2].push_back(o.commit_lsn if o.committed else 0)
            columns[3].push_back(o.commit_timestamp if o.committed else 0)
            columns[4].push_back(o.committed)
        return [(<const char*> columns[k].data())[:columns[k].size() * 8] for k in range(5)], rolled_back

    @property
    def transactions(self):
        if "transactions" not in self.made:
            self.made["transactions"] = self._transactions()
            self.records.boundaries.clear()  # no other table needs them
        return self.made["transactions"]

    cdef object _transactions(self):
        cdef TableBuilder t = TableBuilder(TRANSACTIONS_SCHEMA)
        cdef BoundaryRecord b
        cdef RecordReader[BoundaryRecord] reader
        cdef list kinds = [None] * 256
        cdef bytes kind
        for tag in BOUNDARIES:
            kinds[tag] = KIND_NAMES[tag].encode()
        reader.begin(self.records.boundaries)
        while reader.next(b):
            kind = kinds[b.kind]
            t.put_int(0, b.seq)
            t.put_bytes(1, <const uint8_t*> <const char*> kind, len(kind))
            t.put_int(2, b.txn)
            t.put_int(3, b.xid)
            t.put_int(4, b.subxid)
            t.put_int(5, b.lsn)
            t.put_int(6, b.end_lsn)
            t.put_int(7, b.timestamp)
            t.put_int(8, b.prepare_timestamp)
            self.put_slice(t, 9, b.gid)
            self.put_slice(t, 10, b.origin)
            t.put_int(11, b.origin_lsn)
            t.put_bool(12, b.first_segment)
        return t.finish()

    @property
    def outcomes(self):
        if "outcomes" not in self.made:
            self.made["outcomes"] = self._outcomes()
        return self.made["outcomes"]

    cdef object _outcomes(self):
        cdef TableBuilder t = TableBuilder(OUTCOMES_SCHEMA)
        cdef OutcomeRecord o
        cdef RecordReader[OutcomeRecord] reader
        cdef const char* name
        reader.begin(self.records.outcomes)
        while reader.next(o):
            name = "committed" if o.committed else "aborted"
            t.put_int(0, o.txn)
            t.put_int(1, o.subxid)
            t.put_bytes(2, <const uint8_t*> name, 9 if o.committed else 7)
            t.put_int(3, o.at_seq)
            t.put_int(4, o.commit_lsn)
            t.put_int(5, o.commit_timestamp)
        return t.finish()

    @property
    def truncates(self):
        if "truncates" not in self.made:
            self.made["truncates"] = self._truncates()
        return self.made["truncates"]

    cdef object _truncates(self):
        cdef TableBuilder t = TableBuilder(TRUNCATES_SCHEMA)
        cdef TruncateRecord r
        cdef RecordReader[TruncateRecord] reader
        reader.begin(self.records.truncates)
        while reader.next(r):
            t.put_int(0, r.seq)
            t.put_int(1, r.txn)
            t.put_ints(2, self.records.oids.data() + r.first, r.count)
            t.put_bool(3, r.cascade)
            t.put_bool(4, r.restart_identity)
        return t.finish()

    @property
    def messages(self):
        if "messages" not in self.made:
            self.made["messages"] = self._messages()
        return self.made["messages"]

    cdef object _messages(self):
        cdef TableBuilder t = TableBuilder(MESSAGES_SCHEMA)
        cdef MessageRecord m
        cdef RecordReader[MessageRecord] reader
        reader.begin(self.records.messages)
        while reader.next(m):
            t.put_int(0, m.seq)
            t.put_int(1, m.lsn)
            t.put_int(2, m.txn)
            t.put_int(3, m.xid)
            t.put_bool(4, m.transactional)
            self.put_slice(t, 5, m.prefix)
            self.put_slice(t, 6, m.content)
        return t.finish()

    @property
    def rejects(self):
        if "rejects" not in self.made:
            self.made["rejects"] = self._rejects()
        return self.made["rejects"]

    cdef object _rejects(self):
        cdef TableBuilder t = TableBuilder(REJECTS_SCHEMA)
        cdef RejectRecord* r
        cdef size_t i
        cdef list order = [
            (self.records.rejects[i].seq, self.records.rejects[i].byte_offset, i)
            for i in range(self.records.rejects.size())
        ]
        order.sort()
        cdef dict described = {}
        for _, _, place in order:
            i = place
            r = &self.records.rejects[i]
            key = (r.reason, r.slot, r.column, r.described, r.sent)
            if key not in described:
                described[key] = self._describe(r)
            relation, column, reason = described[key]
            t.put_int(0, r.seq)
            t.put_int(1, r.lsn)
            t.put_text(2, relation)
            t.put_text(3, column)
            t.put_text(4, CHANGE_TYPES[r.change_type] if r.change_type != 0xff else None)
            t.put_text(5, {COLUMN_TEXT: "text", COLUMN_BINARY: "binary"}.get(r.format))
            t.put_int(6, r.type_oid)
            t.put_int(7, r.byte_offset)
            t.put_text(8, reason)
            self.put_slice(t, 9, r.raw)
        return t.finish()

    cdef tuple _describe(self, RejectRecord* r):
        relation = self.versions[r.slot] if r.slot >= 0 else None
        column = relation.columns[r.column] if relation is not None and r.column >= 0 else None
        return (
            relation.qualified_name if relation is not None else None,
            column.name if column is not None else None,
            reason_text(
                r.reason,
                column_type_of(column, self.options, self.types) if column is not None else None,
                r.sent,
                r.described,
            ),
        )


cdef RecordTables take_records(Records& records, list versions, object options, object types):
    """Moves the records into a RecordTables."""
    cdef RecordTables tables = RecordTables.__new__(RecordTables)
    tables.versions = list(versions) if records.rejects.size() else versions
    tables.version_count = len(versions)
    tables.options = options
    tables.types = types
    tables.records.swap(records)  # last: if memory runs out before, the records are unchanged
    return tables
