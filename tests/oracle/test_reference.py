"""The reference decoder against hand-made messages, rule by rule, with the expected values written out."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from reference import output
from reference.messages import decode
from reference.output import ReferenceError
from support.raw_messages import (
    ID,
    R_STREAM,
    STOP,
    TEXT,
    TIME,
    TIME_1970,
    TIMESTAMPTZ,
    R,
    abort,
    begin,
    begin_prepare,
    commit,
    commit_prepared,
    insert,
    message,
    origin,
    prepare,
    relation,
    rollback_prepared,
    start,
    stream_commit,
    tup,
    u32,
    user_type,
)


def ids(out: output.Decoded) -> list[Any]:
    return [row["columns"]["id"] for row in out.rows]


def quarantined(payloads: list[bytes], **options: Any) -> tuple[list[Any], list[int]]:
    """The ids that were decoded, and the seqs that were rejected whole."""
    out = decode(payloads, on_error="quarantine", **options)
    for reject in out.rejects:
        assert reject["raw"] == payloads[reject["seq"]]
        assert (reject["format"], reject["change_type"], reject["type_oid"]) == (None, None, None)
    return ids(out), [reject["seq"] for reject in out.rejects]


def malformed(payloads: list[bytes]) -> ReferenceError:
    with pytest.raises(ReferenceError) as caught:
        decode(payloads)
    return caught.value


# --- rows ---------------------------------------------------------------------------------------------------


def test_insert_row_with_all_its_metadata() -> None:
    version = hashlib.sha256(R[1:]).digest()[:8]
    out = decode([begin(), R, insert(b"1"), commit()], [5, 0, 6, None])
    assert out.rows == [
        {
            "relation": (1, "public", "t"), "version": int.from_bytes(version, "big", signed=True),
            "columns": {"id": 1}, "_change_type": "insert", "_seq": 2, "_lsn": 6, "_txn": 0, "_xid": 7,
            "_subxid": None, "_commit_lsn": 100, "_commit_timestamp": TIME_1970, "_key_only": False,
            "_unchanged": None, "_unrepresentable": None,
        }
    ]  # fmt: skip


def test_version_does_not_depend_on_the_xid_prefix() -> None:
    out = decode([begin(), R, insert(b"1"), commit(), start(), R_STREAM, insert(b"2", xid=9), STOP])
    assert out.rows[0]["version"] == out.rows[1]["version"]


def test_empty_namespace_is_pg_catalog() -> None:
    out = decode([begin(), R.replace(b"public", b""), insert(b"1"), commit()])
    assert out.rows[0]["relation"] == (1, "pg_catalog", "t")


def test_update_and_delete_images() -> None:
    two = relation(ID, (b"v", TEXT, -1))
    key_update = b"U" + u32(1) + b"K" + tup(b"1", None) + b"N" + tup(b"2", b"a")
    bare_update, delete = b"U" + u32(1) + b"N" + tup(b"2", b"b"), b"D" + u32(1) + b"O" + tup(b"2", b"b")
    key_delete = b"D" + u32(1) + b"K" + tup(b"3", None)
    out = decode([begin(), two, key_update, bare_update, delete, key_delete, commit()])
    assert [(r["_seq"], r["_change_type"], r["_key_only"], *r["columns"].values()) for r in out.rows] == [
        (2, "update_preimage", True, 1, None),
        (2, "update_postimage", False, 2, "a"),
        (3, "update_postimage", False, 2, "b"),
        (4, "delete", False, 2, "b"),
        (5, "delete", True, 3, None),
    ]


def test_unchanged_toast_is_listed_unless_the_old_tuple_answers_it() -> None:
    two = relation(ID, (b"v", TEXT, -1))
    bare = b"U" + u32(1) + b"N" + tup(b"2", ...)
    answered = b"U" + u32(1) + b"O" + tup(b"2", b"old") + b"N" + tup(b"2", ...)
    null_is_no_answer = b"U" + u32(1) + b"K" + tup(b"2", None) + b"N" + tup(b"3", ...)
    out = decode([begin(), two, bare, answered, null_is_no_answer, insert(b"4", ...), commit()])
    found = [(row["columns"]["v"], row["_unchanged"]) for row in out.rows]
    assert found == [
        (None, ["v"]), ("old", None), ("old", None), (None, None), (None, ["v"]), (None, ["v"]),
    ]  # fmt: skip


def test_unrepresentable_cell_is_null_and_a_reject_with_its_place() -> None:
    named = relation((b"at", TIMESTAMPTZ, -1), name=b"My t")
    payloads = [begin(), named, insert(b"infinity"), commit()]
    out = decode(payloads, [0, 0, 33, 0])
    assert out.rows[0]["columns"] == {"at": None}
    assert out.rows[0]["_unrepresentable"] == ["at"]
    reject = out.rejects[0]
    assert reject.pop("reason")
    assert reject == {
        "seq": 2, "lsn": 33, "relation": 'public."My t"', "column": "at", "change_type": "insert",
        "format": "text", "type_oid": TIMESTAMPTZ, "byte_offset": 1 + 4 + 1 + 2 + 1 + 4, "raw": b"infinity",
    }  # fmt: skip
    with pytest.raises(ReferenceError) as caught:
        decode(payloads, unrepresentable="raise")
    assert (caught.value.seq, caught.value.column, caught.value.byte_offset) == (2, "at", 13)


def test_unrepresentable_old_value_that_fills_a_new_one_counts_for_both_rows() -> None:
    update = b"U" + u32(1) + b"O" + tup(b"\xff") + b"N" + tup(...)
    out = decode([begin(), relation((b"v", TEXT, -1)), update, commit()])
    assert [(row["_unrepresentable"], row["_unchanged"]) for row in out.rows] == [(["v"], None)] * 2
    assert [reject["change_type"] for reject in out.rejects] == ["update_preimage", "update_postimage"]


def test_truncate_gives_a_row_per_relation() -> None:
    truncate = b"T" + u32(2) + b"\3" + u32(1) + u32(2)
    out = decode([begin(), R, relation(ID, oid=2, name=b"u"), truncate, commit()])
    assert [(r["relation"][2], r["_change_type"], r["columns"]) for r in out.rows] == [
        ("t", "truncate", {"id": None}),
        ("u", "truncate", {"id": None}),
    ]
    assert out.truncates == [
        {"seq": 3, "txn": 0, "relations": [1, 2], "cascade": True, "restart_identity": True}
    ]  # fmt: skip
    for bad in (
        b"T" + u32(0) + b"\0",
        b"T" + u32(1) + b"\4" + u32(1),
        b"T" + u32(2) + b"\0" + u32(1) + u32(3),
    ):
        assert malformed([begin(), R, bad]).seq == 2


# --- malformed messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        relation(ID, ID), R.replace(b"\0d", b"\0x"), R.replace(b"\1\0id", b"\1\2id"), R + b"\0", R[:-1],
        R.replace(b"public", b"\xff"), b"R" + u32(1) + b"p\0t\0d\xff\xff", user_type(9, b"", b"\xff"),
        b"Y" + u32(9) + b"a",
        insert(), insert(b"1", b"2"), insert(b"x"), insert(b"1") + b"\0", insert(b"1", oid=2),
        insert(b"1")[:-1],
        insert(b"1").replace(b"N", b"K"), b"I" + u32(1) + b"N\0\1x",
        b"I" + u32(1) + b"N\0\1t\xff\xff\xff\xff",
        b"U" + u32(1) + b"K" + tup(b"1"), b"D" + u32(1) + b"N" + tup(b"1"), message(2), message(1) + b"\0",
        message(1)[:-1], origin()[:-1], b"?", b"",
    ],
)  # fmt: skip
def test_malformed_messages_raise(bad: bytes) -> None:
    assert malformed([begin(), R, bad]).seq == 2


@pytest.mark.parametrize(
    "payloads",
    [
        [insert(b"1")], [R, insert(b"1")], [origin()], [message(1)], [b"T" + u32(1) + b"\0" + u32(1)],
        [commit()], [STOP], [prepare()], [stream_commit()], [prepare(9, tag=b"p")], [start(first=0)],
        [begin(), begin()], [begin(), begin_prepare()], [begin(), start()], [begin(), prepare()], [begin(),
        STOP],
        [begin(), commit(101)], [begin(), commit(flags=1)], [begin(), abort()], [begin(), stream_commit()],
        [begin(), commit_prepared()], [begin(), rollback_prepared()], [begin_prepare(), commit()],
        [begin_prepare(), prepare(8)], [begin_prepare(), prepare(gid=b"h")], [begin(-1)], [start(first=2)],
        [start(), begin()], [start(), start()], [start(), abort()], [start(), stream_commit()],
        [b"B" + struct.pack(">qqI", 1, 2**63 - 1, 7)], [STOP + b"\0"], [abort() + bytes(8)],
    ],
)  # fmt: skip
def test_what_is_out_of_place_or_out_of_range_raises(payloads: list[bytes]) -> None:
    assert malformed(payloads).seq == len(payloads) - 1


def test_error_names_the_place() -> None:
    error = malformed([begin(), R, insert(b"abc")])
    assert (error.relation, error.column, error.byte_offset) == ("public.t", "id", 13)
    assert isinstance(error, ValueError)
    assert "abc" not in str(error)


# --- boundaries ---------------------------------------------------------------------------------------------


def boundaries(payloads: list[bytes], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in decode(payloads).transactions]


def test_plain_transaction_with_an_origin() -> None:
    out = decode([begin(), origin(), commit()])
    common = {"txn": 0, "xid": 7, "subxid": None, "lsn": 100, "timestamp": TIME_1970,
    "prepare_timestamp": None,
              "gid": None, "first_segment": None}  # fmt: skip
    assert out.transactions == [
        {"seq": 0, "kind": "begin", "end_lsn": None, "origin": None, "origin_lsn": None, **common},
        {"seq": 2, "kind": "commit", "end_lsn": 108, "origin": "o", "origin_lsn": 77, **common},
    ]
    assert out.outcomes == [
        {"txn": 0, "subxid": None, "outcome": "committed", "at_seq": 2, "commit_lsn": 100,
         "commit_timestamp": TIME_1970}
    ]  # fmt: skip


def test_two_phase_boundaries() -> None:
    payloads = [
        begin_prepare(),
        prepare(),
        commit_prepared(),
        begin_prepare(8),
        prepare(8),
        rollback_prepared(8),
    ]
    keys = ("kind", "txn", "xid", "lsn", "end_lsn", "timestamp", "prepare_timestamp", "gid")
    assert boundaries(payloads, *keys) == [
        ("begin_prepare", 0, 7, 500, 508, TIME_1970, TIME_1970, "g"),
        ("prepare", 0, 7, 500, 508, TIME_1970, TIME_1970, "g"),
        ("commit_prepared", 0, 7, 600, 608, TIME_1970 + 1, TIME_1970, "g"),
        ("begin_prepare", 3, 8, 500, 508, TIME_1970, TIME_1970, "g"),
        ("prepare", 3, 8, 500, 508, TIME_1970, TIME_1970, "g"),
        ("rollback_prepared", 3, 8, 508, 708, TIME_1970 + 2, TIME_1970, "g"),
    ]
    outcomes = decode(payloads).outcomes
    assert [(o["txn"], o["outcome"], o["at_seq"], o["commit_lsn"]) for o in outcomes] == [
        (0, "committed", 2, 600),
        (3, "aborted", 5, None),
    ]


def test_stream_boundaries_and_origin_on_the_row_that_ends_the_transaction() -> None:
    with_time = abort(9, 10) + struct.pack(">qq", 0, TIME)
    payloads = [
        start(),
        origin(),
        STOP,
        with_time,
        start(first=0),
        STOP,
        prepare(9, tag=b"p"),
        commit_prepared(9),
    ]
    keys = ("kind", "txn", "xid", "subxid", "lsn", "timestamp", "origin", "first_segment")
    assert boundaries(payloads, *keys) == [
        ("stream_start", 0, 9, None, None, None, None, True),
        ("stream_stop", 0, 9, None, None, None, None, None),
        ("stream_abort", 0, 9, 10, None, TIME_1970, None, None),
        ("stream_start", 0, 9, None, None, None, None, False),
        ("stream_stop", 0, 9, None, None, None, None, None),
        ("stream_prepare", 0, 9, None, 500, TIME_1970, "o", None),
        ("commit_prepared", 0, 9, None, 600, TIME_1970 + 1, None, None),
    ]
    for end in (stream_commit(), abort()):
        assert boundaries([start(), origin(), STOP, end], "origin", "origin_lsn")[-1] == ("o", 77)


def test_ends_of_transactions_never_seen_are_tolerated() -> None:
    out = decode([abort(), abort(9, 10), commit_prepared(), rollback_prepared()])
    assert [(row["txn"], row["xid"], row["subxid"]) for row in out.transactions] == [
        (None, 9, 9), (None, 9, 10), (None, 7, None), (None, 7, None),
    ]  # fmt: skip
    assert [row["prepare_timestamp"] for row in out.transactions] == [None, None, None, TIME_1970]
    assert out.outcomes == []


def test_a_new_transaction_of_a_known_xid_voids_the_older_one() -> None:
    for older in ([start(9), STOP], [start(9), STOP, prepare(9, tag=b"p")], [begin_prepare(9), prepare(9)]):
        for newer in (start(9), begin(xid=9), begin_prepare(9)):
            if newer[:1] == b"S" and older[-1] != STOP:
                continue  # what is prepared may be streamed again
            out = decode([*older, newer])
            found = [(o["txn"], o["subxid"], o["outcome"], o["at_seq"]) for o in out.outcomes]
            assert found == [(0, None, "aborted", len(older))]


def test_a_new_session_voids_what_is_open_but_not_what_is_prepared() -> None:
    payloads = [
        begin_prepare(6), prepare(6), start(9), STOP, start(8), STOP, begin(), R,
        begin(), insert(b"1"), commit(), commit_prepared(6),
    ]  # fmt: skip
    out = decode(payloads, sessions=[8])
    assert [(o["txn"], o["outcome"], o["at_seq"]) for o in out.outcomes] == [
        (2, "aborted", 8), (4, "aborted", 8), (6, "aborted", 8), (8, "committed", 10), (0, "committed", 11),
    ]  # fmt: skip
    with pytest.raises(ReferenceError):
        decode([start(9), STOP, stream_commit()], sessions=[2])


def test_logical_messages() -> None:
    out = decode(
        [
            message(0),
            begin(),
            message(1),
            message(0, lsn=191),
            commit(),
            start(),
            message(1, xid=9),
            message(0, xid=9, lsn=192),
            STOP,
        ],
        [4] * 9,
    )
    keys = ("seq", "lsn", "txn", "xid", "transactional", "prefix", "content")
    assert [tuple(row[key] for key in keys) for row in out.messages] == [
        (0, 190, None, None, False, "p", b"abc"),
        (2, 190, 1, 7, True, "p", b"abc"),
        (3, 191, None, None, False, "p", b"abc"),
        (6, 190, 5, 9, True, "p", b"abc"),
        (7, 192, None, None, False, "p", b"abc"),
    ]


# --- streamed changes and scopes ----------------------------------------------------------------------------


def test_streamed_rows_know_their_subtransaction_but_not_their_commit() -> None:
    out = decode([start(), R_STREAM, insert(b"1", xid=10), STOP, stream_commit()])
    row = out.rows[0]
    assert (row["_txn"], row["_xid"], row["_subxid"], row["_commit_lsn"], row["_commit_timestamp"]) == (
        0, 9, 10, None, None,
    )  # fmt: skip


WIDE = (b"extra", TEXT, -1)


def columns_after(*messages: bytes) -> list[list[str]]:
    return [list(row["columns"]) for row in decode(list(messages)).rows]


def test_a_relation_of_a_stream_is_unknown_outside_until_it_commits() -> None:
    stream = [start(), relation(ID, WIDE, xid=9), insert(b"1", b"x", xid=9), STOP]
    between = [begin(), R, insert(b"1"), commit()]
    late = [begin(200), insert(b"1"), commit(200)]
    assert malformed([*stream, *late]).seq == 5
    assert columns_after(begin(), R, commit(), *stream, *late)[-1] == ["id"]
    wide_late = [begin(200), insert(b"1", b"x"), commit(200)]
    assert columns_after(*stream, stream_commit(), *wide_late)[-1] == ["id", "extra"]
    assert columns_after(*stream, prepare(9, tag=b"p"), commit_prepared(9), *wide_late)[-1] == ["id", "extra"]
    assert malformed([*stream, abort(), *wide_late]).reason
    # a plain Relation that came later is not overridden, but the stream itself goes on with its own
    more = [start(first=0), insert(b"2", b"x", xid=9), STOP]
    assert columns_after(*stream, *between, *more, stream_commit(), *late) == [
        ["id", "extra"], ["id"], ["id", "extra"], ["id"],
    ]  # fmt: skip


def test_an_aborted_subtransaction_takes_its_relations_along() -> None:
    narrow_again = [start(first=0), insert(b"2", xid=9), STOP]
    first = [start(), R_STREAM, relation(ID, WIDE, xid=10), insert(b"1", b"x", xid=10), STOP]
    assert columns_after(*first, abort(9, 10), *narrow_again) == [["id", "extra"], ["id"]]
    assert malformed([*first, *narrow_again]).reason


def test_types_are_scoped_like_relations() -> None:
    described = relation((b"id", 20000, -1), xid=9)
    stream = [start(), user_type(20000, b"", b"int4", xid=9), described, insert(b"1", xid=9), STOP]
    plain = [begin(), relation((b"other", 20000, -1)), insert(b"1"), commit()]
    assert [next(iter(row["columns"].values())) for row in decode([*stream, *plain]).rows] == [1, "1"]
    assert [
        next(iter(row["columns"].values())) for row in decode([*stream, stream_commit(), *plain]).rows
    ] == [1, 1]


def test_a_version_has_one_meaning() -> None:
    """Its id is made of the Relation alone: under the same bytes a type cannot become another one."""
    described = relation((b"id", 20000, -1))
    as_int, as_text, as_mood, renamed = (
        user_type(20000, namespace, name)
        for namespace, name in ((b"", b"int4"), (b"", b"text"), (b"public", b"mood"), (b"s", b"feeling"))
    )
    problem = malformed([begin(), as_int, described, insert(b"1"), as_text, described])
    assert (problem.seq, problem.relation, problem.column) == (5, "public.t", "id")
    stream = [begin(), as_int, described, insert(b"1"), as_text, described, insert(b"2"), as_int, described]
    out = decode([*stream, insert(b"3"), commit()], on_error="quarantine")
    assert ids(out) == [1, 3]
    assert [row["relation"] for row in out.rejects] == ["public.t"] * 2
    assert ids(decode([begin(), as_mood, described, insert(b"a"), renamed, described, insert(b"b")])) == [
        "a",
        "b",
    ]


def test_a_relation_in_a_prepared_plain_transaction_is_plain() -> None:
    assert ids(decode([begin_prepare(), R, prepare(), begin(), insert(b"1"), commit()])) == [1]


# --- quarantine ---------------------------------------------------------------------------------------------


def test_a_bad_change_is_set_aside_alone() -> None:
    bad = b"U" + u32(1) + b"O" + tup(b"1") + b"N" + tup(b"x")
    out = decode([begin(), R, insert(b"1"), bad, insert(b"2"), commit()], [9] * 6, on_error="quarantine")
    assert ids(out) == [1, 2]
    reject = out.rejects[0]
    assert reject.pop("reason")
    assert reject == {
        "seq": 3, "lsn": 9, "relation": "public.t", "column": "id", "change_type": None, "format": None,
        "type_oid": None, "byte_offset": 22, "raw": bad,
    }  # fmt: skip


OTHER = relation(ID, oid=2, name=b"u")
OTHER_1, OTHER_2 = insert(b"1", oid=2), insert(b"2", oid=2)
ONE_ROW, TWO, THREE = insert(b"1"), insert(b"2"), insert(b"3")
BAD_IN_STREAM = [start(), R_STREAM + b"\0", insert(b"1", xid=9), STOP]


# fmt: off
SET_ASIDE = [
    pytest.param([begin(), R, b"T" + u32(1) + b"\4" + u32(1), TWO, R, THREE], [3], [2, 3],
                 id="a bad truncate with all changes"),
    pytest.param([begin(), R, message(3), TWO, R, THREE], [3], [2, 3], id="a bad message with all changes"),
    pytest.param([begin(), R, origin() + b"\0", TWO, R, THREE], [3], [2, 3], id="a bad origin with all changes"),
    pytest.param([begin(), R, b"I" + R[1:], TWO, R, THREE], [3], [2, 3],
                 id="a change that may be a relation with its changes"),
    pytest.param([begin(), R, OTHER_1, TWO], [2], [2], id="a change of an unknown relation alone"),
    pytest.param([R, ONE_ROW, begin(), TWO], [2], [1], id="a change outside transactions alone"),
    pytest.param([begin(), R, OTHER, R + b"\0", ONE_ROW, OTHER_2, R, THREE], [2, 3], [3, 4],
                 id="a bad relation with its changes until a valid one"),
    pytest.param([begin(), R, OTHER, b"R\0", ONE_ROW, OTHER_2, R, THREE, OTHER_1], [3], [3, 4, 5, 8],
                 id="a relation of unreadable oid with all changes"),
    pytest.param([begin(), R, commit(), *BAD_IN_STREAM, begin(200), TWO], [2], [4, 5],
                 id="a bad relation in its scope only"),
    pytest.param([begin(), OTHER, b"Y\0", R, ONE_ROW, OTHER_2, R, THREE], [3], [2, 4, 5],
                 id="a bad type with the next relation and all changes"),
]
# fmt: on


@pytest.mark.parametrize(("payloads", "decoded", "rejected"), SET_ASIDE)
def test_sets_aside(payloads: list[bytes], decoded: list[int], rejected: list[int]) -> None:
    assert quarantined(payloads) == (decoded, rejected)


@pytest.mark.parametrize(
    "bad", [b"?", b"", b"B", STOP, stream_commit(), commit(101), abort() + b"\0", start()]
)
def test_a_bad_boundary_sets_everything_aside_until_the_next(bad: bytes) -> None:
    payloads = [begin(), R, insert(b"1"), bad, insert(b"2"), R, message(0), commit(),
                begin(200), insert(b"3"), R, insert(b"4"), commit(200)]  # fmt: skip
    assert quarantined(payloads) == ([1, 4], [3, 4, 5, 6, 9])
    out = decode(payloads, on_error="quarantine")
    assert [(row["kind"], row["txn"]) for row in out.transactions] == [
        ("begin", 0), ("commit", None), ("begin", 8), ("commit", 8),
    ]  # fmt: skip
    assert [(row["txn"], row["at_seq"]) for row in out.outcomes] == [(8, 12)]


def test_streams_survive_a_bad_boundary() -> None:
    payloads = [start(), R_STREAM, insert(b"1", xid=9), b"?", insert(b"2", xid=9), STOP,
                start(first=0), insert(b"3", xid=9), R_STREAM, insert(b"4", xid=9), STOP,
                stream_commit()]  # fmt: skip
    assert quarantined(payloads) == ([1, 4], [3, 4, 7])
    out = decode(payloads, on_error="quarantine")
    assert [(row["kind"], row["txn"]) for row in out.transactions][1] == ("stream_stop", None)
    assert [(row["txn"], row["outcome"]) for row in out.outcomes] == [(0, "committed")]


def test_a_prepare_after_a_loss_is_accepted_without_its_transaction() -> None:
    out = decode([b"?", prepare(), commit_prepared()], on_error="quarantine")
    assert [(row["kind"], row["txn"]) for row in out.transactions] == [
        ("prepare", None),
        ("commit_prepared", None),
    ]
    assert out.outcomes == []


def test_every_truncated_message_is_malformed() -> None:
    payloads = [
        start(), user_type(20000, b"", b"int4", xid=9), R_STREAM, insert(b"1", xid=9), message(1, xid=9),
        origin(),
        STOP, stream_commit(), begin(), R, insert(b"1"), b"U" + u32(1) + b"O" + tup(b"1") + b"N" + tup(b"2"),
        b"T" + u32(1) + b"\0" + u32(1), commit(), begin_prepare(), prepare(), commit_prepared(),
        rollback_prepared(), abort(),
    ]  # fmt: skip
    assert len(decode(payloads).rows) == 5
    for seq, payload in enumerate(payloads):
        for length in range(len(payload)):
            assert malformed([*payloads[:seq], payload[:length]]).seq == seq


# --- committed view -----------------------------------------------------------------------------------------


def committed(payloads: list[bytes], **options: Any) -> list[tuple[Any, ...]]:
    out = decode(payloads, transactions="committed", **options)
    return [(row["_commit_lsn"], row["_seq"], row["columns"]["id"]) for row in out.rows]


def test_committed_view_of_interleaved_streams() -> None:
    payloads = [
        start(), R_STREAM, insert(b"10", xid=9), insert(b"11", xid=10), message(1, xid=9), STOP, abort(9, 10),
        begin(300), R, insert(b"50"), commit(300), start(first=0), R_STREAM, insert(b"12", xid=10), STOP,
        stream_commit(), start(12), relation(ID, xid=12), insert(b"99", xid=12), STOP, abort(12),
        begin(500), insert(b"98"),
    ]  # fmt: skip
    assert committed(payloads) == [(300, 9, 50), (400, 2, 10), (400, 13, 12)]
    out = decode(payloads, transactions="committed")
    assert {row["_commit_timestamp"] for row in out.rows} == {TIME_1970}
    assert len(out.messages) == 1
    assert ids(decode(payloads)) == [10, 11, 50, 12, 99, 98]


def test_committed_view_of_prepared_transactions() -> None:
    prepared = [begin_prepare(), R, insert(b"1"), prepare()]
    assert committed(prepared) == []
    assert committed([*prepared, rollback_prepared()]) == []
    assert committed([*prepared, commit_prepared()]) == [(600, 2, 1)]
    streamed = [start(), R_STREAM, insert(b"1", xid=9), STOP, prepare(9, tag=b"p")]
    assert committed([*streamed, commit_prepared(9)]) == [(600, 2, 1)]
    assert committed([*streamed, commit_prepared(9, b"another")]) == []


def test_committed_view_of_a_transaction_sent_again_in_a_new_session() -> None:
    once = [start(), R_STREAM, insert(b"1", xid=9), STOP]
    assert committed([*once, *once, stream_commit()], sessions=[4]) == [(400, 6, 1)]
    assert committed([*once, begin(xid=9), R, insert(b"1"), commit()], sessions=[4]) == [(100, 6, 1)]


def test_committed_view_holds_truncates_and_messages_but_not_non_transactional_ones() -> None:
    truncate = b"T" + u32(10) + u32(1) + b"\0" + u32(1)
    payloads = [start(), R_STREAM, truncate, message(1, xid=9), message(0, xid=9), STOP]
    out = decode(payloads, transactions="committed")
    assert (out.rows, out.truncates, [row["seq"] for row in out.messages]) == ([], [], [4])
    out = decode([*payloads, abort(9, 10), stream_commit()], transactions="committed")
    assert (out.rows, out.truncates, [row["seq"] for row in out.messages]) == ([], [], [4, 3])
    out = decode([*payloads, stream_commit()], transactions="committed")
    assert (out.rows[0]["_commit_lsn"], out.truncates[0]["relations"]) == (400, [1])


def test_committed_view_gives_rejects_with_the_rows() -> None:
    payloads = [start(), relation((b"v", TEXT, -1), xid=9), insert(b"\xff", xid=9), STOP]
    assert decode(payloads, transactions="committed").rejects == []
    assert len(decode([*payloads, stream_commit()], transactions="committed").rejects) == 1
    bad = [start(), R_STREAM, insert(b"x", xid=9), STOP]
    decode([*bad, abort()], transactions="committed")
    with pytest.raises(ReferenceError) as caught:
        decode([*bad, stream_commit()], transactions="committed")
    assert caught.value.seq == 2


def test_committed_view_sets_held_changes_of_a_lost_transaction_aside() -> None:
    payloads = [begin(), R, insert(b"1"), b"?", insert(b"2"), commit()]
    assert quarantined(payloads, transactions="committed") == ([], [3, 2, 4])
