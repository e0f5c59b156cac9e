"""The tables beside the changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.schema.tables import (
    MESSAGES_SCHEMA,
    OUTCOMES_SCHEMA,
    REJECTS_SCHEMA,
    TRANSACTIONS_SCHEMA,
    TRUNCATES_SCHEMA,
)

EPOCH = 946_684_800_000_000
T = RelationSpec(
    16384, "public", "Order Lines", (ColumnSpec("id", 23), ColumnSpec("n", 1231, (5 << 16 | 2) + 4))
)
U = RelationSpec(16385, "public", "u", ())


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    values = zip(*(column.to_pylist() for column in columns), strict=True)
    return [{k: v for k, v in zip(batch.schema.names, row, strict=True) if v is not None} for row in values]


def test_schemas() -> None:
    out = pgo.decode([])
    for name, schema in {
        "transactions": TRANSACTIONS_SCHEMA, "outcomes": OUTCOMES_SCHEMA, "truncates": TRUNCATES_SCHEMA,
        "messages": MESSAGES_SCHEMA, "rejects": REJECTS_SCHEMA,
    }.items():  # fmt: skip
        assert getattr(out, name).schema.equals(schema)


def test_transactions_and_outcomes() -> None:
    out = pgo.decode(
        [
            encode.encode_begin(100, 5, 7), encode.encode_origin(50, "up"), encode.encode_commit(100, 108, 5),
            encode.encode_begin_prepare(200, 208, 6, 8, "g"), encode.encode_prepare(200, 208, 6, 8, "g"),
            encode.encode_stream_start(9, True), encode.encode_stream_stop(),
            encode.encode_stream_abort(9, 10, 0, 7), encode.encode_stream_commit(9, 300, 308, 8),
            encode.encode_commit_prepared(400, 408, 9, 8, "g"), encode.encode_rollback_prepared(1, 2, 3, 4, 5, "other"),
        ]
    )  # fmt: skip
    at = EPOCH
    assert plain(out.transactions) == [
        {"seq": 0, "kind": "begin", "txn": 0, "xid": 7, "lsn": 100, "timestamp": at + 5},
        {"seq": 2, "kind": "commit", "txn": 0, "xid": 7, "lsn": 100, "end_lsn": 108, "timestamp": at + 5, "origin": "up", "origin_lsn": 50},
        {"seq": 3, "kind": "begin_prepare", "txn": 3, "xid": 8, "lsn": 200, "end_lsn": 208, "timestamp": at + 6,
         "prepare_timestamp": at + 6, "gid": "g"},
        {"seq": 4, "kind": "prepare", "txn": 3, "xid": 8, "lsn": 200, "end_lsn": 208, "timestamp": at + 6,
         "prepare_timestamp": at + 6, "gid": "g"},
        {"seq": 5, "kind": "stream_start", "txn": 5, "xid": 9, "first_segment": True},
        {"seq": 6, "kind": "stream_stop", "txn": 5, "xid": 9},
        {"seq": 7, "kind": "stream_abort", "txn": 5, "xid": 9, "subxid": 10, "timestamp": at + 7},
        {"seq": 8, "kind": "stream_commit", "txn": 5, "xid": 9, "lsn": 300, "end_lsn": 308, "timestamp": at + 8},
        {"seq": 9, "kind": "commit_prepared", "txn": 3, "xid": 8, "lsn": 400, "end_lsn": 408, "timestamp": at + 9,
         "prepare_timestamp": at + 6, "gid": "g"},
        {"seq": 10, "kind": "rollback_prepared", "xid": 5, "lsn": 1, "end_lsn": 2, "timestamp": at + 4,
         "prepare_timestamp": at + 3, "gid": "other"},
    ]  # fmt: skip
    assert plain(out.outcomes) == [
        {"txn": 0, "outcome": "committed", "at_seq": 2, "commit_lsn": 100, "commit_timestamp": at + 5},
        {"txn": 5, "subxid": 10, "outcome": "aborted", "at_seq": 7},
        {"txn": 5, "outcome": "committed", "at_seq": 8, "commit_lsn": 300, "commit_timestamp": at + 8},
        {"txn": 3, "outcome": "committed", "at_seq": 9, "commit_lsn": 400, "commit_timestamp": at + 9},
    ]


def test_truncates_and_messages() -> None:
    out = pgo.decode(
        [
            encode.encode_message(5, "outside", b"\0\xff", transactional=False),
            encode.encode_begin(100, 0, 7), encode.encode_relation(T), encode.encode_relation(U),
            encode.encode_truncate([16384, 16385], cascade=True), encode.encode_truncate([16385], restart_identity=True),
            encode.encode_message(6, "inside", b""), encode.encode_message(7, "alone", b"", transactional=False),
        ]
    )  # fmt: skip
    assert plain(out.truncates) == [
        {"seq": 4, "txn": 1, "relations": [16384, 16385], "cascade": True, "restart_identity": False},
        {"seq": 5, "txn": 1, "relations": [16385], "cascade": False, "restart_identity": True},
    ]
    assert plain(out.messages) == [
        {"seq": 0, "lsn": 5, "transactional": False, "prefix": "outside", "content": b"\0\xff"},
        {"seq": 6, "lsn": 6, "txn": 1, "xid": 7, "transactional": True, "prefix": "inside", "content": b""},
        {"seq": 7, "lsn": 7, "transactional": False, "prefix": "alone", "content": b""},
    ]
    assert [each.batch.column("_change_type").to_pylist() for each in out.changes] == [
        ["truncate"],
        ["truncate"] * 2,
    ]


def test_rejects_say_where_and_keep_the_bytes() -> None:
    payloads = [
        encode.encode_begin(100, 0, 7), encode.encode_relation(T),
        encode.encode_insert(16384, ["1", "{NaN,1,NaN}"]), encode.encode_insert(16384, ["x", "{}"]),
        encode.encode_insert(16384, ["1", "[0:1]={1,2}"]), b"?",
    ]  # fmt: skip
    out = pgo.decode(payloads, lsn=[1, 2, 3, 4, 5, 6], options=pgo.Options(on_error="quarantine"))
    rejects = plain(out.rejects)
    reasons = [each.pop("reason") for each in rejects]
    cell = {
        "relation": 'public."Order Lines"',
        "column": "n",
        "change_type": "insert",
        "format": "text",
        "type_oid": 1231,
    }
    assert rejects == [
        {"seq": 2, "lsn": 3, **cell, "byte_offset": 19, "raw": b"{NaN,1,NaN}"},
        {
            "seq": 3,
            "lsn": 4,
            "relation": cell["relation"],
            "column": "id",
            "byte_offset": 13,
            "raw": payloads[3],
        },
        {"seq": 4, "lsn": 5, **cell, "byte_offset": 19, "raw": b"[0:1]={1,2}"},
        {"seq": 5, "lsn": 6, "byte_offset": 0, "raw": b"?"},
    ]
    assert all(len(reason) > 10 for reason in reasons)
    batch = out.changes[0].batch
    assert batch.column("_unrepresentable").to_pylist() == [["n"], None]
    assert [[str(v) for v in values] for values in batch.column("n").to_pylist()] == [
        ["None", "1.00", "None"],
        ["1.00", "2.00"],
    ]


def test_messages_that_a_new_session_sends_again_come_once() -> None:
    def at(lsn: int) -> bytes:
        return encode.encode_message(lsn, "p", b"%d" % lsn, transactional=False)

    for mode in ("as_sent", "committed"):
        with pgo.Decoder(pgo.Options(transactions=mode)) as decoder:
            contents = decoder.decode([at(10), at(20)]).messages.column("content").to_pylist()
            decoder.start_session()
            state = pgo.StreamState.from_json(decoder.state.to_json())
            with pgo.Decoder(decoder.options, state) as again:
                contents += again.decode([at(10), at(20), at(30)]).messages.column("content").to_pylist()
        assert contents == [b"10", b"20", b"30"]
    decoder = pgo.Decoder()
    decoder.decode([at(10)])
    decoder.start_session()
    tagged, state = pgo.tag([at(10), at(11)], decoder.state)
    assert pgo.decode_tagged(tagged, state.catalog).messages.column("content").to_pylist() == [b"11"]
