"""Streams that are long in one direction only: messages, relations, columns, bytes of a cell, open transactions.

The cost of decoding, per unit, must not depend on the length. `guard` counts the instructions of small streams,
`growth` measures the time of large streams, and `memory` measures their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

import pgoutput_fast as pgo
from benchmarks import corpora
from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.encode import (
    Binary,
    ColumnSpec,
    RelationSpec,
    encode_begin,
    encode_begin_prepare,
    encode_commit,
    encode_commit_prepared,
    encode_insert,
    encode_prepare,
    encode_relation,
    encode_stream_abort,
    encode_stream_start,
    encode_stream_stop,
    encode_truncate,
)

__all__ = [
    "Shape",
    "arrays",
    "columns",
    "damaged",
    "first_seen",
    "long_cell",
    "namesakes",
    "nulls",
    "one_of_many",
    "open_prepared",
    "open_streams",
    "pgbench",
    "relations",
    "resent",
    "subtransactions",
    "subtransactions_with_relations",
    "tagged_truncate",
    "transactions",
    "versions",
]

INT4, TEXT, BYTEA, JSONB, INT4_ARRAY = 23, 25, 17, 3802, 1007
FIRST_OID = 20_000
BEGIN, COMMIT = encode_begin(100, 0, 7), encode_commit(100, 148, 0)


@dataclass(frozen=True)
class Shape:
    """Calls that can be decoded any number of times.

    Attributes:
        known: payloads to decode before the calls.
        calls: the payloads of every call.
        units: number of messages, cells, bytes or calls; the cost is divided by it.
        options: the decoder's default options.
        tags: whether to tag the calls instead of decoding them.
        table: the table to make from the result of every call.
    """

    known: list[bytes]
    calls: list[pa.Array]
    units: int
    options: pgo.Options | None = None
    tags: bool = False
    table: str | None = None

    def ready(self) -> Callable[[], None]:
        """A function that decodes all calls, with a decoder that has already decoded `known`."""
        if self.tags:
            native = NativeDecoder(pgo.Options())
            native.tag([_array(self.known)], None, None)
            return lambda: [native.tag([call], None, None) for call in self.calls].clear()
        decoder = pgo.Decoder(self.options)
        decoder.decode(self.known)

        def run() -> None:
            for call in self.calls:
                decoded = decoder.decode(call)
                if self.table is not None:
                    decoded.table(self.table)

        return run


def relations(count: int, messages: int, messages_per_call: int) -> Shape:
    """Rows of `count` relations in turn. Units: messages."""
    inserts = [encode_insert(FIRST_OID + k % count, ["1", "some text"]) for k in range(min(count, messages))]
    rows = (inserts * (messages // len(inserts) + 1))[:messages]
    calls = [_array(rows[at : at + messages_per_call]) for at in range(0, messages, messages_per_call)]
    return Shape([BEGIN, *(_relation(k) for k in range(count))], calls, messages)


def one_of_many(count: int, calls: int, messages_per_call: int) -> Shape:
    """Small calls with rows of one relation, while `count` relations are known. Units: messages."""
    small = relations(1, messages_per_call, messages_per_call).calls
    return Shape([BEGIN, *(_relation(k) for k in range(count))], small * calls, calls * messages_per_call)


def columns(count: int, rows: int) -> Shape:
    """Rows of a relation with `count` integers. Units: cells."""
    spec = tuple(ColumnSpec(f"c{k}", INT4) for k in range(count))
    relation = encode_relation(RelationSpec(FIRST_OID, "public", "t", spec))
    insert = encode_insert(FIRST_OID, [str(k % 1000) for k in range(count)])
    return Shape([BEGIN, relation], [_array([insert] * rows)], rows * count)


def arrays(count: int, rows: int, elements: int) -> Shape:
    """Rows of `count` relations in turn, with two arrays of `elements` integers per row. Units: elements."""
    spec = (ColumnSpec("a", INT4_ARRAY), ColumnSpec("b", INT4_ARRAY))
    known = [encode_relation(RelationSpec(FIRST_OID + k, "public", f"t{k}", spec)) for k in range(count)]
    array = "{" + ",".join(str(k) for k in range(elements)) + "}"
    inserts = [encode_insert(FIRST_OID + k, [array, array]) for k in range(count)]
    return Shape([BEGIN, *known], [_array(inserts * (rows // count))], rows // count * count * 2 * elements)


def nulls(count: int, rows: int) -> Shape:
    """Rows of a relation with `count` texts. In every row, a different tenth of them is not null. Units: cells."""
    spec = tuple(ColumnSpec(f"c{k}", TEXT) for k in range(count))
    relation = encode_relation(RelationSpec(FIRST_OID, "public", "t", spec))
    inserts = [
        encode_insert(FIRST_OID, ["text" if (k + row) % 10 == 0 else None for k in range(count)])
        for row in range(10)
    ]
    return Shape([BEGIN, relation], [_array(inserts * (rows // 10))], rows // 10 * 10 * count)


def long_cell(length: int, rows: int, kind: str = "text") -> Shape:
    """Rows with one value of `length` bytes. Units: bytes.

    `kind` is text, jsonb, `bytea hex` (hexadecimal text) or `bytea binary`.
    """
    oid = {"text": TEXT, "jsonb": JSONB, "bytea hex": BYTEA, "bytea binary": BYTEA}[kind]
    relation = encode_relation(RelationSpec(FIRST_OID, "public", "t", (ColumnSpec("c", oid),)))
    if kind == "bytea hex":
        cell: bytes | Binary = b"\\x" + b"5a" * ((length - 2) // 2)
    elif kind == "bytea binary":
        cell = Binary(b"\xa5" * length)
    else:
        cell = b'"' + b"j" * (length - 2) + b'"' if kind == "jsonb" and length > 1 else b"1" * length
    return Shape([BEGIN, relation], [_array([encode_insert(FIRST_OID, [cell])] * rows)], rows * length)


def transactions(messages: int, rows_per_transaction: int) -> Shape:
    """Transactions with `rows_per_transaction` rows each, in one call. Units: messages."""
    one = [BEGIN, *[encode_insert(FIRST_OID, ["1", "some text"])] * rows_per_transaction, COMMIT]
    times = max(1, messages // len(one))
    return Shape([BEGIN, _relation(0), COMMIT], [_array(one * times)], len(one) * times)


def pgbench(scale: float) -> Shape:
    """pgbench's default script. Units: messages."""
    payloads = corpora.corpus("pgbench", scale).payloads
    return Shape([], [payloads], len(payloads))


def open_streams(count: int, calls: int, rows_per_call: int) -> Shape:
    """Calls with one block of a streamed transaction per call, while `count` streams are open. Units: messages."""
    insert = [encode_insert(FIRST_OID, ["1", "some text"], xid=xid) for xid in range(1000, 1000 + count)]
    known = [BEGIN, _relation(0), COMMIT]
    for k in range(count):
        known += [encode_stream_start(1000 + k, True), insert[k], encode_stream_stop()]
    blocks = []
    for k in range(calls):
        block = [encode_stream_start(1000 + k % count, False), *[insert[k % count]] * rows_per_call]
        blocks.append(_array([*block, encode_stream_stop()]))
    return Shape(known, blocks, calls * (rows_per_call + 2))


def open_prepared(count: int, calls: int, rows_per_call: int) -> Shape:
    """Calls with one transaction per call, while `count` transactions are prepared. Units: messages."""
    known = [BEGIN, _relation(0), COMMIT]
    for k in range(count):
        prepared = (100, 148, 0, 1_000_000 + k, f"gid {k}")
        known += [encode_begin_prepare(*prepared), encode_prepare(*prepared)]
    call = _array([BEGIN, *[encode_insert(FIRST_OID, ["1", "some text"])] * rows_per_call, COMMIT])
    return Shape(known, [call] * calls, calls * (rows_per_call + 2))


def first_seen(count: int) -> Shape:
    """Calls of ten messages. One describes a new relation, and one is a row of this relation. Units: messages."""
    filler = [encode_insert(FIRST_OID, ["1", "some text"])] * 8
    calls = [
        _array([_relation(k), encode_insert(FIRST_OID + k, ["1", "some text"]), *filler])
        for k in range(1, count + 1)
    ]
    return Shape([BEGIN, _relation(0)], calls, 10 * count)


def versions(count: int) -> Shape:
    """One table with a row of each of many versions of a relation. Every version renames a column. Units: versions."""
    messages = []
    for k in range(count):
        columns = ColumnSpec("id", INT4, key=True), ColumnSpec(f"c{k}", TEXT)
        messages.append(encode_relation(RelationSpec(FIRST_OID, "public", "t", columns)))
        messages.append(encode_insert(FIRST_OID, ["1", "some text"]))
    return Shape([BEGIN], [_array(messages)], count, table="public.t")


def subtransactions(count: int, aborted: bool) -> Shape:
    """A streamed transaction with a row in each of `count` subtransactions, optionally all aborted. Units: messages."""
    start, stop = [encode_stream_start(1000, True)], [encode_stream_stop()]
    rows = [encode_insert(FIRST_OID, ["1", "some text"], xid=1001 + k) for k in range(count)]
    ends = [encode_stream_abort(1000, 1001 + k) for k in range(count)] if aborted else []
    messages = [*start, *rows, *stop, *ends, encode_stream_abort(1000, 1000)]
    return Shape([BEGIN, _relation(0), COMMIT], [_array(messages)], len(messages))


def subtransactions_with_relations(count: int) -> Shape:
    """A streamed transaction with a Relation in each of `count` subtransactions, all aborted. Units: messages."""
    body = _relation(0)[1:]
    said = [b"R" + (1001 + k).to_bytes(4, "big") + body for k in range(count)]
    ends = [encode_stream_abort(1000, 1001 + k) for k in reversed(range(count))]
    messages = [encode_stream_start(1000, True), *said, encode_stream_stop(), *ends]
    messages.append(encode_stream_abort(1000, 1000))
    return Shape([BEGIN, _relation(0), COMMIT], [_array(messages)], len(messages))


def namesakes(count: int) -> Shape:
    """`count` transactions that are all prepared with the same gid, and then committed. Units: messages."""
    messages = []
    for k in range(count):
        messages += [
            each(100, 148, 0, 1_000_000 + k, "gid") for each in (encode_begin_prepare, encode_prepare)
        ]
    messages += [encode_commit_prepared(200, 248, 0, 1_000_000 + k, "gid") for k in range(count)]
    return Shape([], [_array(messages)], len(messages))


def damaged(count: int) -> Shape:
    """`count` bad boundaries in quarantine, with `count` relations known and `count` streams open. Units: messages."""
    known = [BEGIN, *map(_relation, range(count)), COMMIT]
    for k in range(count):
        known += [encode_stream_start(1000 + k, True), encode_stream_stop()]
    messages = [b"C", BEGIN, COMMIT] * count
    return Shape(known, [_array(messages)], len(messages), pgo.Options(on_error="quarantine"))


def tagged_truncate(relations: int, truncates: int) -> Shape:
    """Tags `truncates` Truncates of `relations` relations each. Units: rows."""
    known = [BEGIN, *map(_relation, range(relations))]
    message = encode_truncate(range(FIRST_OID, FIRST_OID + relations))
    return Shape(known, [_array([message] * truncates)], relations * truncates, tags=True)


def resent(relations: int, messages: int) -> Shape:
    """Rows, each after a Relation message that the decoder already knows. Units: messages."""
    pairs = [
        each
        for k in range(relations)
        for each in (_relation(k), encode_insert(FIRST_OID + k, ["1", "some text"]))
    ]
    times = max(1, messages // len(pairs))
    return Shape([BEGIN, *pairs], [_array(pairs * times)], len(pairs) * times)


def _relation(k: int) -> bytes:
    spec = (ColumnSpec("id", INT4, key=True), ColumnSpec("note", TEXT))
    return encode_relation(RelationSpec(FIRST_OID + k, "public", f"t{k}", spec))


def _array(messages: Iterable[bytes]) -> pa.Array:
    messages = list(messages)
    size = sum(map(len, messages))
    return pa.array(messages, pa.binary() if size < 1 << 31 else pa.large_binary())
