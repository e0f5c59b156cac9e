"""Parses the bodies of Relation and Type messages, and makes relation versions from them.

These messages are rare, so Python objects are fast enough. Every read checks the body's bounds.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from pgoutput_fast._core.protocol.reasons cimport (
    BAD_COUNT,
    BAD_FLAGS,
    BAD_IDENTITY,
    BAD_STRING,
    DUPLICATE_COLUMN,
    TRAILING_BYTES,
    TRUNCATED,
)
from pgoutput_fast._core.protocol.wire cimport load16, load32

from functools import lru_cache

from pgoutput_fast.catalog.relations import Column, Relation, version_of


class Malformed(Exception):
    """A body that violates the protocol. `reason` is a code of reasons.py, `offset` is relative to the body's start."""

    def __init__(self, int reason, int64_t offset):
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset
        self.frame = 0  # the frame's ordinal; only set for frames


cdef class _Reader:
    cdef const uint8_t[::1] body
    cdef int64_t at
    cdef int64_t size

    def __cinit__(self, const uint8_t[::1] body):
        self.body = body
        self.at = 0
        self.size = body.shape[0]

    cdef int64_t need(self, int64_t n) except -1:
        if self.size - self.at < n:
            raise Malformed(TRUNCATED, self.size)
        self.at += n
        return self.at - n

    cdef uint8_t byte(self) except? 0xfe:
        return self.body[self.need(1)]

    cdef uint32_t u32(self) except? 0xfffffffe:
        cdef int64_t at = self.need(4)
        return load32(&self.body[at])

    cdef int64_t i16(self) except? -0x10000:
        cdef int64_t at = self.need(2)
        cdef int64_t value = load16(&self.body[at])
        return value - 0x10000 if value >= 0x8000 else value

    cdef str text(self):
        cdef int64_t start = self.at
        while self.at < self.size and self.body[self.at] != 0:
            self.at += 1
        if self.at == self.size:
            raise Malformed(TRUNCATED, self.size)
        self.at += 1
        try:
            return bytes(self.body[start:self.at - 1]).decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed(BAD_STRING, start) from None

    cdef int finish(self) except -1:
        if self.at != self.size:
            raise Malformed(TRAILING_BYTES, self.at)
        return 0


def parse_relation(const uint8_t[::1] body):
    """Returns (oid, namespace, name, replica identity, [(name, type oid, typmod, key)]).

    `body` is a Relation message without tag and xid.
    """
    cdef _Reader r = _Reader(body)
    cdef uint32_t oid = r.u32()
    namespace = r.text() or "pg_catalog"
    name = r.text()
    cdef int64_t at = r.at
    cdef uint8_t identity = r.byte()
    if identity not in (c'd', c'n', c'f', c'i'):
        raise Malformed(BAD_IDENTITY, at)
    at = r.at
    cdef int64_t count = r.i16()
    # A column takes at least ten bytes.
    if count < 0 or count * 10 > r.size - r.at:
        raise Malformed(BAD_COUNT if count < 0 else TRUNCATED, at if count < 0 else r.size)
    columns = []
    names = set()
    cdef uint8_t flags
    for _ in range(count):
        at = r.at
        flags = r.byte()
        if flags > 1:
            raise Malformed(BAD_FLAGS, at)
        at = r.at
        column = r.text()
        if column in names:
            raise Malformed(DUPLICATE_COLUMN, at)
        names.add(column)
        type_oid = r.u32()
        columns.append((column, type_oid, <int32_t> r.u32(), flags == 1))
    r.finish()
    return oid, namespace, name, chr(identity), columns


# Every new decoder, session and task reads the same Relation messages.
fields_of = lru_cache(maxsize=1024)(parse_relation)

# Equal columns of different relations share one object.
_column = lru_cache(maxsize=4096)(Column)


@lru_cache(maxsize=1024)
def relation_of(body, type_names=()):
    """Returns the relation version that a Relation message describes.

    Args:
        body: the message without tag and xid.
        type_names: (oid, (namespace, name)) of the columns' types that Type messages named.

    Raises:
        Malformed: if the body violates the protocol.
    """
    oid, namespace, name, identity, columns = fields_of(body)
    names = dict(type_names)
    named = [
        _column(column, type_oid, typmod, key, *names.get(type_oid, (None, None)))
        for column, type_oid, typmod, key in columns
    ]
    return Relation(oid, version_of(body), namespace, name, identity, tuple(named))


def parse_type(const uint8_t[::1] body):
    """Returns (oid, namespace, name). `body` is a Type message without tag and xid."""
    cdef _Reader r = _Reader(body)
    oid = r.u32()
    namespace = r.text() or "pg_catalog"
    name = r.text()
    r.finish()
    return oid, namespace, name
