"""The writer against bytes laid out by hand from the protocol, and the values against what a server sent."""

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pgoutput_fast.encode import (
    UNCHANGED,
    Binary,
    ColumnSpec,
    RelationSpec,
    Writer,
    encode_begin,
    encode_begin_prepare,
    encode_commit,
    encode_commit_prepared,
    encode_delete,
    encode_insert,
    encode_message,
    encode_origin,
    encode_prepare,
    encode_relation,
    encode_rollback_prepared,
    encode_stream_abort,
    encode_stream_commit,
    encode_stream_prepare,
    encode_stream_start,
    encode_stream_stop,
    encode_truncate,
    encode_tuple,
    encode_type,
    encode_update,
)
from pgoutput_fast.encode.values import to_microseconds

# Fields of the expected messages.
LSN_1 = bytes.fromhex("0000 0001 0000 0002")  # 1/2
LSN_2 = bytes.fromhex("0000 0001 0000 0032")  # 1/32
TIME_1 = bytes.fromhex("0000 0000 000f 4240")  # 2000-01-01 00:00:01
TIME_2 = bytes.fromhex("ffff ffff fff0 bdc0")  # 1999-12-31 23:59:59
XID = bytes.fromhex("0000 0007")
SUBXID = bytes.fromhex("0000 0008")
OID = bytes.fromhex("0000 4011")
ROW = b"\x00\x02t\x00\x00\x00\x015n"
"""The tuple of the cells ("5", None)."""
INSERT = b"I" + OID + b"N" + ROW
LSN = (1 << 32) + 2
END_LSN = (1 << 32) + 0x32
SECOND = 1_000_000

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
ORDERS_BODY = (
    OID + b"public\x00orders\x00d\x00\x02"
    b"\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff"
    b"\x00note\x00\x00\x00\x00\x19\xff\xff\xff\xff"
)
RELATION = b"R" + ORDERS_BODY
MOODS = RelationSpec(
    16402, "public", "m", (ColumnSpec("a", 16500), ColumnSpec("b", 16500), ColumnSpec("c", 9999))
)
MOODS_BODY = (
    b"\x00\x00\x40\x12public\x00m\x00d\x00\x03"
    b"\x00a\x00\x00\x00\x40\x74\xff\xff\xff\xff"
    b"\x00b\x00\x00\x00\x40\x74\xff\xff\xff\xff"
    b"\x00c\x00\x00\x00\x27\x0f\xff\xff\xff\xff"
)


def in_transaction(**options) -> Writer:
    writer = Writer(**options)
    writer.begin(7, LSN, SECOND)
    return writer


def in_stream(**options) -> Writer:
    writer = Writer(streaming="on", **options)
    writer.stream_start(7)
    return writer


# --- one message each ---


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (encode_begin(LSN, SECOND, 7), b"B" + LSN_1 + TIME_1 + XID),
        (encode_commit(LSN, END_LSN, -SECOND), b"C\x00" + LSN_1 + LSN_2 + TIME_2),
        (encode_origin(LSN, "é"), b"O" + LSN_1 + b"\xc3\xa9\x00"),
        (encode_relation(ORDERS), RELATION),
        (encode_relation(ORDERS, xid=7), b"R" + XID + ORDERS_BODY),
        (
            encode_relation(RelationSpec(2**32 - 1, "", "", (), "n")),
            b"R\xff\xff\xff\xff\x00\x00n\x00\x00",
        ),
        (
            encode_relation(RelationSpec(1, "pg_catalog", "t", (ColumnSpec("n", 1700, 0x000A0006),), "i")),
            b"R\x00\x00\x00\x01\x00t\x00i\x00\x01\x00n\x00\x00\x00\x06\xa4\x00\x0a\x00\x06",
        ),
        (
            encode_relation(RelationSpec(1, "s", "t", (ColumnSpec("n", 20),), "f")),
            b"R\x00\x00\x00\x01s\x00t\x00f\x00\x01\x01n\x00\x00\x00\x00\x14\xff\xff\xff\xff",
        ),
        (encode_type(16500, "public", "mood"), b"Y\x00\x00\x40\x74public\x00mood\x00"),
        (encode_type(16501, "pg_catalog", "int4", xid=7), b"Y" + XID + b"\x00\x00\x40\x75\x00int4\x00"),
        (encode_insert(16401, ["5", None]), INSERT),
        (encode_insert(16401, ["5", None], xid=7), b"I" + XID + OID + b"N" + ROW),
        (encode_update(16401, ["5", None]), b"U" + OID + b"N" + ROW),
        (encode_update(16401, [], key=["5", None]), b"U" + OID + b"K" + ROW + b"N\x00\x00"),
        (encode_update(16401, [], old=["5", None], xid=7), b"U" + XID + OID + b"O" + ROW + b"N\x00\x00"),
        (encode_delete(16401, key=["5", None]), b"D" + OID + b"K" + ROW),
        (encode_delete(16401, old=["5", None], xid=7), b"D" + XID + OID + b"O" + ROW),
        (encode_truncate([16401]), b"T\x00\x00\x00\x01\x00" + OID),
        (encode_truncate([16401], cascade=True), b"T\x00\x00\x00\x01\x01" + OID),
        (
            encode_truncate([16401, 1], cascade=True, restart_identity=True, xid=7),
            b"T" + XID + b"\x00\x00\x00\x02\x03" + OID + b"\x00\x00\x00\x01",
        ),
        (encode_message(LSN, "p", b"a\x00"), b"M\x01" + LSN_1 + b"p\x00\x00\x00\x00\x02a\x00"),
        (
            encode_message(LSN, "", b"", transactional=False, xid=7),
            b"M" + XID + b"\x00" + LSN_1 + b"\x00\x00\x00\x00\x00",
        ),
        (encode_stream_start(7, True), b"S" + XID + b"\x01"),
        (encode_stream_start(7, False), b"S" + XID + b"\x00"),
        (encode_stream_stop(), b"E"),
        (encode_stream_commit(7, LSN, END_LSN, SECOND), b"c" + XID + b"\x00" + LSN_1 + LSN_2 + TIME_1),
        (encode_stream_abort(7, 8), b"A" + XID + SUBXID),
        (encode_stream_abort(7, 8, LSN, SECOND), b"A" + XID + SUBXID + LSN_1 + TIME_1),
        (encode_begin_prepare(LSN, END_LSN, SECOND, 7, "g"), b"b" + LSN_1 + LSN_2 + TIME_1 + XID + b"g\x00"),
        (encode_prepare(LSN, END_LSN, SECOND, 7, "g"), b"P\x00" + LSN_1 + LSN_2 + TIME_1 + XID + b"g\x00"),
        (
            encode_stream_prepare(LSN, END_LSN, SECOND, 7, "g"),
            b"p\x00" + LSN_1 + LSN_2 + TIME_1 + XID + b"g\x00",
        ),
        (
            encode_commit_prepared(LSN, END_LSN, SECOND, 7, "g"),
            b"K\x00" + LSN_1 + LSN_2 + TIME_1 + XID + b"g\x00",
        ),
        (
            encode_rollback_prepared(LSN, END_LSN, SECOND, -SECOND, 7, "g"),
            b"r\x00" + LSN_1 + LSN_2 + TIME_1 + TIME_2 + XID + b"g\x00",
        ),
    ],
)
def test_messages(written, expected):
    assert written == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, b"n"),
        (UNCHANGED, b"u"),
        ("", b"t\x00\x00\x00\x00"),
        ("é", b"t\x00\x00\x00\x02\xc3\xa9"),
        (b"\xff\x00", b"t\x00\x00\x00\x02\xff\x00"),
        (Binary(b""), b"b\x00\x00\x00\x00"),
        (Binary(b"\x00\x01"), b"b\x00\x00\x00\x02\x00\x01"),
    ],
)
def test_cells(cell, expected):
    assert encode_tuple([cell]) == b"\x00\x01" + expected


def test_unchanged_survives_pickling():
    assert pickle.loads(pickle.dumps(UNCHANGED)) is UNCHANGED
    assert repr(UNCHANGED) == "UNCHANGED"


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=45))])
def test_datetimes(zone):
    moment = datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC).astimezone(zone)
    assert encode_begin(LSN, moment, 7) == b"B" + LSN_1 + TIME_1 + XID


def test_microseconds_are_exact():
    assert to_microseconds(datetime(9999, 12, 31, 23, 59, 59, 999999)) == 252455615999999999
    assert to_microseconds(datetime(1, 1, 1, tzinfo=UTC)) == -63082281600000000


class Huge(bytes):
    def __len__(self) -> int:
        return 2**31


@pytest.mark.parametrize(
    ("argument", "write"),
    [
        ("final_lsn", lambda: encode_begin(-1, 0, 7)),
        ("commit_timestamp", lambda: encode_begin(1, 2**63, 7)),
        ("commit_timestamp", lambda: encode_begin(1, datetime(2000, 1, 1), 7)),
        ("xid", lambda: encode_begin(1, 0, 2**32)),
        ("xid", lambda: encode_begin(1, 0, "7")),
        ("commit_lsn", lambda: encode_commit(2**63, 1, 0)),
        ("end_lsn", lambda: encode_commit(1, 2**63, 0)),
        ("origin_lsn", lambda: encode_origin(-1, "o")),
        ("name", lambda: encode_origin(1, "a\x00b")),
        ("name", lambda: encode_origin(1, "\ud800")),
        ("oid", lambda: encode_relation(RelationSpec(-1, "s", "t", ()))),
        ("namespace", lambda: encode_relation(RelationSpec(1, "\x00", "t", ()))),
        ("name", lambda: encode_relation(RelationSpec(1, "s", "\x00", ()))),
        ("replica_identity", lambda: encode_relation(RelationSpec(1, "s", "t", (), "x"))),
        ("columns", lambda: encode_relation(RelationSpec(1, "s", "t", (ColumnSpec("c", 23),) * 2**15))),
        ("column name", lambda: encode_relation(RelationSpec(1, "s", "t", (ColumnSpec("\x00", 23),)))),
        ("type_oid", lambda: encode_relation(RelationSpec(1, "s", "t", (ColumnSpec("c", -1),)))),
        ("typmod", lambda: encode_relation(RelationSpec(1, "s", "t", (ColumnSpec("c", 23, 2**31),)))),
        ("oid", lambda: encode_type(2**32, "s", "t")),
        ("namespace", lambda: encode_type(1, "\x00", "t")),
        ("name", lambda: encode_type(1, "s", "\x00")),
        ("relation_oid", lambda: encode_insert(-1, [])),
        ("xid", lambda: encode_insert(1, [], xid=-1)),
        ("cells", lambda: encode_insert(1, [None] * 2**15)),
        ("cell", lambda: encode_insert(1, [5])),
        ("cell", lambda: encode_insert(1, ["\ud800"])),
        ("cell", lambda: encode_insert(1, [Huge()])),
        ("cell", lambda: encode_insert(1, [Binary(Huge())])),
        ("relation_oid", lambda: encode_update(2**32, [])),
        ("old and key", lambda: encode_update(1, [], old=[], key=[])),
        ("old and key", lambda: encode_delete(1)),
        ("old and key", lambda: encode_delete(1, old=[], key=[])),
        ("relation_oid", lambda: encode_delete(-1, old=[])),
        ("relation_oids", lambda: encode_truncate([1, -1])),
        ("lsn", lambda: encode_message(-1, "p", b"")),
        ("prefix", lambda: encode_message(1, "\x00", b"")),
        ("content", lambda: encode_message(1, "p", Huge())),
        ("xid", lambda: encode_stream_start(-1, True)),
        ("xid", lambda: encode_stream_commit(-1, 1, 1, 0)),
        ("xid", lambda: encode_stream_abort(-1, 1)),
        ("subxid", lambda: encode_stream_abort(1, -1)),
        ("abort_lsn", lambda: encode_stream_abort(1, 1, -1, 0)),
        ("abort_timestamp", lambda: encode_stream_abort(1, 1, 1, -(2**63) - 1)),
        ("abort_lsn and abort_timestamp", lambda: encode_stream_abort(1, 1, 1)),
        ("abort_lsn and abort_timestamp", lambda: encode_stream_abort(1, 1, None, 0)),
        ("prepare_lsn", lambda: encode_begin_prepare(-1, 1, 0, 7, "g")),
        ("end_lsn", lambda: encode_prepare(1, -1, 0, 7, "g")),
        ("prepare_timestamp", lambda: encode_stream_prepare(1, 1, 2**63, 7, "g")),
        ("gid", lambda: encode_prepare(1, 1, 0, 7, "\x00")),
        ("xid", lambda: encode_commit_prepared(1, 1, 0, -7, "g")),
        ("gid", lambda: encode_commit_prepared(1, 1, 0, 7, "\x00")),
        ("prepare_end_lsn", lambda: encode_rollback_prepared(-1, 1, 0, 0, 7, "g")),
        ("rollback_end_lsn", lambda: encode_rollback_prepared(1, -1, 0, 0, 7, "g")),
        ("prepare_timestamp", lambda: encode_rollback_prepared(1, 1, 2**63, 0, 7, "g")),
        ("rollback_timestamp", lambda: encode_rollback_prepared(1, 1, 0, 2**63, 7, "g")),
    ],
)
def test_what_no_field_holds(argument, write):
    with pytest.raises(ValueError, match=rf"^(exactly one of )?{argument} (must|is longer|must be)"):
        write()


# --- callbacks ---


def test_plain_transaction():
    writer = Writer(1)
    assert writer.begin(7, LSN, SECOND) == [b"B" + LSN_1 + TIME_1 + XID]
    assert writer.origin(LSN, "o") == [b"O" + LSN_1 + b"o\x00"]
    assert writer.change(ORDERS, "insert", ["5", None]) == [RELATION, INSERT]
    assert writer.change(ORDERS, "update", ["5", None], xid=8) == [b"U" + OID + b"N" + ROW]
    assert writer.change(ORDERS, "update", ["5", None], key=["5", None]) == [
        b"U" + OID + b"K" + ROW + b"N" + ROW
    ]
    assert writer.change(ORDERS, "update", ["5", UNCHANGED], old=["5", None]) == [
        b"U" + OID + b"O" + ROW + b"N\x00\x02t\x00\x00\x00\x015u"
    ]
    assert writer.change(ORDERS, "delete", old=["5", None]) == [b"D" + OID + b"O" + ROW]
    assert writer.truncate([ORDERS], cascade=True) == [b"T\x00\x00\x00\x01\x01" + OID]
    assert writer.message(LSN, "p", b"x") == [b"M\x01" + LSN_1 + b"p\x00\x00\x00\x00\x01x"]
    assert writer.commit(LSN, END_LSN, SECOND) == [b"C\x00" + LSN_1 + LSN_2 + TIME_1]
    assert writer.message(LSN, "p", b"x", transactional=False) == [
        b"M\x00" + LSN_1 + b"p\x00\x00\x00\x00\x01x"
    ]


def test_relation_is_known_for_the_session_until_it_changes():
    writer = in_transaction()
    assert writer.change(ORDERS, "insert", ["5", None])[:-1] == [RELATION]
    writer.commit(LSN, END_LSN, SECOND)
    writer.begin(8, LSN, SECOND)
    assert writer.change(ORDERS, "insert", ["5", None]) == [INSERT]
    narrower = RelationSpec(16401, "public", "orders", ORDERS.columns[:1])
    changed = b"R" + OID + b"public\x00orders\x00d\x00\x01\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff"
    assert writer.change(narrower, "insert", ["5"])[:-1] == [changed]
    assert writer.change(ORDERS, "insert", ["5", None])[:-1] == [RELATION]
    assert writer.relation(ORDERS, xid=8) == [RELATION]
    assert writer.change(ORDERS, "insert", ["5", None]) == [INSERT]


def test_truncate_describes_each_relation():
    writer = in_transaction()
    writer.relation(ORDERS)
    assert writer.truncate([MOODS, ORDERS], restart_identity=True) == [
        b"R" + MOODS_BODY,
        b"T\x00\x00\x00\x02\x02\x00\x00\x40\x12" + OID,
    ]


def test_types_precede_their_relation_once_per_column():
    mood = b"Y\x00\x00\x40\x74public\x00mood\x00"
    writer = in_transaction(types={16500: ("public", "mood"), 9999: ("public", "never sent")})
    assert writer.change(MOODS, "insert", [None, None, None])[:-1] == [mood, mood, b"R" + MOODS_BODY]
    assert len(writer.change(MOODS, "insert", [None, None, None])) == 1

    writer = in_stream()
    prefixed = b"Y" + SUBXID + b"\x00\x00\x40\x74public\x00mood\x00"
    assert writer.type(16500, "public", "mood") == [b"Y" + XID + b"\x00\x00\x40\x74public\x00mood\x00"]
    assert writer.relation(MOODS, xid=8) == [prefixed, prefixed, b"R" + SUBXID + MOODS_BODY]


def test_streamed_transaction():
    writer = Writer(2, streaming="on")
    assert writer.stream_start(7) == [b"S" + XID + b"\x01"]
    assert writer.origin(LSN, "o") == [b"O" + LSN_1 + b"o\x00"]
    assert writer.change(ORDERS, "insert", ["5", None], xid=8) == [
        b"R" + SUBXID + ORDERS_BODY,
        b"I" + SUBXID + OID + b"N" + ROW,
    ]
    assert writer.change(ORDERS, "delete", key=["5", None]) == [b"D" + XID + OID + b"K" + ROW]
    assert writer.change(ORDERS, "update", ["5", None], xid=8) == [b"U" + SUBXID + OID + b"N" + ROW]
    assert writer.truncate([ORDERS], xid=8) == [b"T" + SUBXID + b"\x00\x00\x00\x01\x00" + OID]
    assert writer.message(LSN, "p", b"x") == [b"M" + XID + b"\x01" + LSN_1 + b"p\x00\x00\x00\x00\x01x"]
    assert writer.stream_stop() == [b"E"]
    assert writer.message(LSN, "", b"", transactional=False) == [b"M\x00" + LSN_1 + b"\x00\x00\x00\x00\x00"]
    assert writer.stream_start(7) == [b"S" + XID + b"\x00"]
    assert writer.change(ORDERS, "insert", ["5", None]) == [b"I" + XID + OID + b"N" + ROW]
    writer.stream_stop()
    assert writer.stream_commit(7, LSN, END_LSN, SECOND) == [b"c" + XID + b"\x00" + LSN_1 + LSN_2 + TIME_1]
    # What the transaction described counts for the session now, and its xid may come back.
    writer.begin(9, LSN, SECOND)
    assert writer.change(ORDERS, "insert", ["5", None]) == [INSERT]
    writer.commit(LSN, END_LSN, SECOND)
    assert writer.stream_start(7) == [b"S" + XID + b"\x01"]


def test_streamed_transactions_do_not_share_relations():
    writer = in_stream()
    assert len(writer.change(ORDERS, "insert", ["5", None])) == 2
    writer.stream_stop()
    writer.stream_start(8)
    assert len(writer.change(ORDERS, "insert", ["5", None])) == 2
    writer.stream_stop()
    writer.begin(9, LSN, SECOND)
    assert writer.change(ORDERS, "insert", ["5", None]) == [RELATION, INSERT]


def test_abort_of_a_subtransaction_forgets_the_relations():
    writer = in_stream()
    writer.change(ORDERS, "insert", ["5", None], xid=8)
    writer.stream_stop()
    assert writer.stream_abort(7, 8, abort_lsn=LSN, abort_timestamp=SECOND) == [b"A" + XID + SUBXID]
    assert writer.stream_start(7) == [b"S" + XID + b"\x00"]
    assert len(writer.change(ORDERS, "insert", ["5", None])) == 2


def test_abort_of_a_stream_ends_it():
    writer = in_stream()
    writer.change(ORDERS, "insert", ["5", None])
    writer.stream_stop()
    assert writer.stream_abort(7) == [b"A" + XID + XID]
    assert writer.stream_start(7) == [b"S" + XID + b"\x01"]
    writer.stream_stop()
    writer.begin(9, LSN, SECOND)
    assert len(writer.change(ORDERS, "insert", ["5", None])) == 2


def test_a_changed_relation_is_forgotten_by_all_streams():
    narrower = RelationSpec(16401, "public", "orders", ORDERS.columns[:1])
    writer = in_stream()
    writer.change(ORDERS, "insert", ["5", None])
    writer.stream_stop()
    writer.begin(9, LSN, SECOND)
    writer.change(narrower, "insert", ["5"])
    writer.commit(LSN, END_LSN, SECOND)
    writer.stream_commit(7, LSN, END_LSN, SECOND)
    writer.begin(10, LSN, SECOND)
    assert len(writer.change(narrower, "insert", ["5"])) == 1
    assert len(writer.change(ORDERS, "insert", ["5", None])) == 2


def test_parallel_aborts_carry_position_and_time():
    writer = Writer(4, streaming="parallel")
    writer.stream_start(7)
    writer.stream_stop()
    assert writer.stream_abort(7, 8, abort_lsn=LSN, abort_timestamp=SECOND) == [
        b"A" + XID + SUBXID + LSN_1 + TIME_1
    ]
    for half in ({}, {"abort_lsn": LSN}, {"abort_timestamp": SECOND}):
        with pytest.raises(ValueError, match="abort_lsn and abort_timestamp are needed"):
            writer.stream_abort(7, **half)


@pytest.mark.parametrize("proto_version", [1, 2, 3, 4])
def test_prepared_transaction_under_any_version(proto_version):
    writer = Writer(proto_version, two_phase=True)
    fields = LSN_1 + LSN_2 + TIME_1 + XID + b"g\x00"
    assert writer.begin_prepare(7, LSN, END_LSN, SECOND, "g") == [b"b" + fields]
    assert writer.origin(LSN, "o") == [b"O" + LSN_1 + b"o\x00"]
    assert writer.change(ORDERS, "insert", ["5", None]) == [RELATION, INSERT]
    assert writer.prepare(7, LSN, END_LSN, SECOND, "g") == [b"P\x00" + fields]
    assert writer.commit_prepared(7, LSN, END_LSN, SECOND, "g") == [b"K\x00" + fields]
    assert writer.rollback_prepared(7, LSN, END_LSN, SECOND, -SECOND, "g") == [
        b"r\x00" + LSN_1 + LSN_2 + TIME_1 + TIME_2 + XID + b"g\x00"
    ]


def test_stream_prepare_ends_the_stream_and_promotes_nothing():
    writer = in_stream(two_phase=True)
    writer.change(ORDERS, "insert", ["5", None])
    writer.stream_stop()
    assert writer.stream_prepare(7, LSN, END_LSN, SECOND, "g") == [
        b"p\x00" + LSN_1 + LSN_2 + TIME_1 + XID + b"g\x00"
    ]
    writer.begin(9, LSN, SECOND)
    assert writer.change(ORDERS, "insert", ["5", None]) == [RELATION, INSERT]


@pytest.mark.parametrize(
    ("proto_version", "options", "reason"),
    [
        (0, {}, "proto_version"),
        (5, {}, "proto_version"),
        (1, {"streaming": "on"}, "higher proto_version"),
        (3, {"streaming": "parallel"}, "higher proto_version"),
        (4, {"streaming": "yes"}, "^streaming must be"),
    ],
)
def test_options(proto_version, options, reason):
    with pytest.raises(ValueError, match=reason):
        Writer(proto_version, **options)


PREPARED = (LSN, END_LSN, SECOND, "g")


@pytest.mark.parametrize(
    "callback",
    [
        lambda writer: writer.stream_start(7),
        lambda writer: writer.stream_commit(7, LSN, END_LSN, SECOND),
        lambda writer: writer.stream_abort(7),
        lambda writer: writer.begin_prepare(7, *PREPARED),
        lambda writer: writer.prepare(7, *PREPARED),
        lambda writer: writer.stream_prepare(7, *PREPARED),
        lambda writer: writer.commit_prepared(7, *PREPARED),
        lambda writer: writer.rollback_prepared(7, LSN, END_LSN, SECOND, SECOND, "g"),
    ],
)
def test_callbacks_that_were_not_negotiated(callback):
    with pytest.raises(ValueError, match=r"^\w+: "):
        callback(Writer())


OUTSIDE_ONLY = {
    "begin": lambda writer: writer.begin(7, LSN, SECOND),
    "begin_prepare": lambda writer: writer.begin_prepare(7, *PREPARED),
    "stream_start": lambda writer: writer.stream_start(7),
    "stream_abort": lambda writer: writer.stream_abort(7),
    "stream_commit": lambda writer: writer.stream_commit(7, LSN, END_LSN, SECOND),
    "stream_prepare": lambda writer: writer.stream_prepare(7, *PREPARED),
    "commit_prepared": lambda writer: writer.commit_prepared(7, *PREPARED),
    "rollback_prepared": lambda writer: writer.rollback_prepared(7, LSN, END_LSN, SECOND, SECOND, "g"),
    "message": lambda writer: writer.message(LSN, "p", b"", transactional=False),
}
INSIDE_ONLY = {
    "relation": lambda writer: writer.relation(ORDERS),
    "type": lambda writer: writer.type(16500, "public", "mood"),
    "change": lambda writer: writer.change(ORDERS, "insert", ["5", None]),
    "truncate": lambda writer: writer.truncate([ORDERS]),
    "message": lambda writer: writer.message(LSN, "p", b""),
    "origin": lambda writer: writer.origin(LSN, "o"),
}
ENDS = {
    "commit": lambda writer: writer.commit(LSN, END_LSN, SECOND),
    "prepare": lambda writer: writer.prepare(7, *PREPARED),
    "stream_stop": lambda writer: writer.stream_stop(),
}
OPENED = {
    "commit": lambda writer: writer.begin(7, LSN, SECOND),
    "prepare": lambda writer: writer.begin_prepare(7, *PREPARED),
    "stream_stop": lambda writer: writer.stream_start(7),
}


@pytest.mark.parametrize("end", OPENED)
@pytest.mark.parametrize("name", OUTSIDE_ONLY)
def test_callbacks_that_come_between_transactions(end, name):
    writer = Writer(streaming="on", two_phase=True)
    OPENED[end](writer)
    with pytest.raises(ValueError, match=f"^{name}.*: no transaction or stream block may be open"):
        OUTSIDE_ONLY[name](writer)
    ENDS[end](writer)


@pytest.mark.parametrize("name", [*INSIDE_ONLY, *ENDS])
def test_callbacks_that_need_a_transaction(name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        {**INSIDE_ONLY, **ENDS}[name](Writer())


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("end", ENDS)
def test_each_begin_has_its_own_end(opened, end):
    if opened == end:
        return
    writer = Writer(streaming="on", two_phase=True)
    OPENED[opened](writer)
    with pytest.raises(ValueError, match=rf"^{end}: a .* must be open, but a .* is$"):
        ENDS[end](writer)


def test_ends_of_streams_never_seen():
    writer = Writer(streaming="on", two_phase=True)
    for name in ("stream_abort", "stream_commit", "stream_prepare"):
        with pytest.raises(ValueError, match=f"^{name}: xid"):
            OUTSIDE_ONLY[name](writer)


@pytest.mark.parametrize("name", [name for name in INSIDE_ONLY if name != "origin"])
def test_origin_comes_first(name):
    writer = in_transaction()
    INSIDE_ONLY[name](writer)
    with pytest.raises(ValueError, match=r"^origin: "):
        writer.origin(LSN, "o")


def test_origin_comes_once_per_transaction():
    writer = in_stream()
    writer.origin(LSN, "o")
    with pytest.raises(ValueError, match=r"^origin: "):
        writer.origin(LSN, "o")
    writer.stream_stop()
    writer.stream_start(7)
    with pytest.raises(ValueError, match=r"^origin: "):
        writer.origin(LSN, "o")


@pytest.mark.parametrize(
    ("kind", "tuples", "reason"),
    [
        ("insert", {}, "^new is needed for"),
        ("insert", {"new": ["5"]}, "^new has 1 cells for 2 columns"),
        ("insert", {"new": ["5", None], "old": ["5", None]}, "^old and key do not belong"),
        ("insert", {"new": ["5", None], "key": ["5", None]}, "^old and key do not belong"),
        ("update", {"old": ["5", None]}, "^new is needed for"),
        ("update", {"new": ["5", None], "old": ["5"]}, "^old has 1 cells"),
        ("update", {"new": ["5", None], "key": ["5"]}, "^key has 1 cells"),
        (
            "update",
            {"new": ["5", None], "old": ["5", None], "key": ["5", None]},
            "^exactly one of old and key",
        ),
        ("delete", {}, "^exactly one of old and key"),
        ("delete", {"new": ["5", None], "old": ["5", None]}, "^new is needed for"),
        ("upsert", {"new": ["5", None]}, "^kind must be"),
    ],
)
def test_tuples_that_do_not_fit_the_kind(kind, tuples, reason):
    writer = in_transaction()
    with pytest.raises(ValueError, match=reason):
        writer.change(ORDERS, kind, **tuples)
    assert writer.change(ORDERS, "insert", ["5", None]) == [RELATION, INSERT]


def test_truncate_needs_a_relation():
    with pytest.raises(ValueError, match="relations must not be empty"):
        in_transaction().truncate([])


def test_a_failed_call_changes_nothing():
    writer = Writer(streaming="on")
    with pytest.raises(ValueError, match="final_lsn"):
        writer.begin(7, -1, SECOND)
    with pytest.raises(ValueError, match="xid"):
        writer.stream_start(-1)
    writer.begin(7, LSN, SECOND)
    with pytest.raises(ValueError, match="name"):
        writer.origin(LSN, "\x00")
    writer.origin(LSN, "o")
    nameless = RelationSpec(16403, "public", "\x00", ())
    with pytest.raises(ValueError, match="name"):
        writer.truncate([ORDERS, nameless])
    with pytest.raises(ValueError, match="name"):
        writer.relation(nameless)
    assert writer.change(ORDERS, "insert", ["5", None]) == [RELATION, INSERT]
    with pytest.raises(ValueError, match="end_lsn"):
        writer.commit(LSN, -1, SECOND)
    writer.commit(LSN, END_LSN, SECOND)
    writer.stream_start(7)
    writer.stream_stop()
    with pytest.raises(ValueError, match="commit_lsn"):
        writer.stream_commit(7, -1, END_LSN, SECOND)
    with pytest.raises(ValueError, match="subxid"):
        writer.stream_abort(7, -1)
    writer.stream_commit(7, LSN, END_LSN, SECOND)
