"""Stage 2, tag: the state machine; what may come where, and what follows from what went wrong."""

from __future__ import annotations

from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import DecodeError, encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
U = RelationSpec(16385, "public", "u", (ColumnSpec("id", 23),))
BEGIN, COMMIT = encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)
R, I = encode.encode_relation(T), encode.encode_insert(T.oid, ["1"])  # noqa: E741
RU, IU = encode.encode_relation(U), encode.encode_insert(U.oid, ["1"])
S, S_MORE, E = (
    encode.encode_stream_start(9, True),
    encode.encode_stream_start(9, False),
    encode.encode_stream_stop(),
)
R9, I9 = encode.encode_relation(T, xid=9), encode.encode_insert(T.oid, ["1"], xid=9)
C9 = encode.encode_stream_commit(9, 300, 308, 0)
ORIGIN = encode.encode_origin(5, "o")


def quarantined(*payloads: bytes) -> tuple[list[int], list[int]]:
    """(seqs of decoded rows, seqs of rejects)."""
    out = pgo.decode(list(payloads), options=pgo.Options(on_error="quarantine"))
    rows = [seq for each in out.changes for seq in each.batch.column("_seq").to_pylist()]
    return sorted(rows), out.rejects.column("seq").to_pylist()


@pytest.mark.parametrize(
    "payloads",
    [
        [COMMIT], [E], [S_MORE], [C9], [I], [ORIGIN], [BEGIN, BEGIN], [BEGIN, S], [BEGIN, E], [BEGIN, C9], [S, S_MORE], [S, BEGIN],
        [S, COMMIT], [S, encode.encode_stream_abort(9, 9)], [BEGIN, encode.encode_commit(101, 108, 0)], [BEGIN, I], [b""], [b"?"],
        [encode.encode_prepare(1, 2, 0, 7, "g")], [encode.encode_begin_prepare(1, 2, 0, 7, "g"), COMMIT],
        [encode.encode_begin_prepare(1, 2, 0, 7, "g"), encode.encode_prepare(1, 2, 0, 7, "h")],
        [encode.encode_truncate([16384])], [BEGIN, encode.encode_truncate([16384])],
        [encode.encode_message(1, "p", b"")],
    ],
)  # fmt: skip
def test_what_may_not_come(payloads: list[bytes]) -> None:
    with pytest.raises(DecodeError) as caught:
        pgo.decode(payloads)
    assert caught.value.seq == len(payloads) - 1
    assert caught.value.byte_offset is not None


PREPARE_BEGIN, PREPARE = (
    encode.encode_begin_prepare(1, 2, 0, 7, "g"),
    encode.encode_prepare(1, 2, 0, 7, "g"),
)
ABORT9, PREPARE9 = encode.encode_stream_abort(9, 9), encode.encode_stream_prepare(1, 2, 0, 9, "g")
K, ROLLBACK = (
    encode.encode_commit_prepared(1, 2, 0, 7, "g"),
    encode.encode_rollback_prepared(1, 2, 0, 0, 7, "g"),
)
TRUNCATE, MESSAGE = encode.encode_truncate([16384]), encode.encode_message(1, "p", b"")
BOUNDARIES = [BEGIN, COMMIT, PREPARE_BEGIN, PREPARE, S, S_MORE, E, C9, PREPARE9, ABORT9, K, ROLLBACK]
WITHIN = {"Begin": [BEGIN], "Begin Prepare": [PREPARE_BEGIN], "Stream Start": [S]}


@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        ([COMMIT], "a Begin was expected"), ([I], "a Begin or Stream Start was expected"), ([ORIGIN], "a Begin or Stream Start"),
        ([TRUNCATE], "a Begin or Stream Start"), ([MESSAGE], "a Begin or Stream Start"), ([PREPARE], "a Begin Prepare was expected"),
        ([E], "a Stream Start was expected"), ([S, E, E], "a Stream Start was expected"), ([BEGIN, COMMIT, COMMIT], "a Begin was expected"),
        ([S, E, C9, I9], "a Begin or Stream Start was expected"), ([S, R9, E, I], "a Begin or Stream Start was expected"),
        ([BEGIN, encode.encode_commit(101, 108, 0)], "another LSN than the open Begin"),
        ([PREPARE_BEGIN, encode.encode_prepare(1, 2, 0, 8, "g")], "another xid or gid than the open Begin Prepare"),
        ([PREPARE_BEGIN, encode.encode_prepare(1, 2, 0, 7, "h")], "another xid or gid than the open Begin Prepare"),
        ([S, E, S_MORE, E, encode.encode_stream_commit(10, 1, 2, 0)], "the Stream Start that begins this transaction"), ([S_MORE], "the Stream Start that begins this transaction"), ([C9], "the Stream Start that begins this transaction"),
        ([PREPARE9], "the Stream Start that begins this transaction"), ([S, E, C9, S_MORE], "the Stream Start that begins this transaction"), ([S, E, PREPARE9, C9], "the Stream Start that begins this transaction"),
        ([S, E, ABORT9, S_MORE], "the Stream Start that begins this transaction"), ([BEGIN, I], "no Relation message described the relation"), ([S, I9], "no Relation message described the relation"),
        *(([BEGIN, b], "the open transaction's Commit was expected") for b in BOUNDARIES if b is not COMMIT),
        *(([PREPARE_BEGIN, b], "the open transaction's Prepare was expected") for b in BOUNDARIES if b is not PREPARE),
        *(([S, b], "the open stream block's Stream Stop was expected") for b in BOUNDARIES if b is not E),
    ],
)  # fmt: skip
def test_error_about_the_order_names_what_was_expected(payloads: list[bytes], expected: str) -> None:
    with pytest.raises(DecodeError, match=expected) as caught:
        pgo.decode(payloads)
    assert caught.value.seq == len(payloads) - 1
    (last,) = pgo.decode(payloads, options=pgo.Options(on_error="quarantine")).rejects.to_pylist()[-1:]
    assert (last["seq"], last["reason"]) == (len(payloads) - 1, caught.value.reason)
    assert last["raw"] == payloads[-1]


@pytest.mark.parametrize("opened", WITHIN.values(), ids=WITHIN)
def test_session_may_begin_wherever_the_one_before_broke_off(opened: list[bytes]) -> None:
    """With its mark, every beginning is in order; without, only where it shows."""
    for first in ([BEGIN, R, I, COMMIT], [PREPARE_BEGIN, R, I, PREPARE], [S, R9, I9, E, C9]):
        decoder = pgo.Decoder()
        decoder.decode(opened)
        decoder.start_session()
        out = decoder.decode(first)
        assert sum(each.batch.num_rows for each in out.changes) == 1
        with pytest.raises(DecodeError, match="start_session"):
            pgo.decode([*opened, *first])


@pytest.mark.parametrize(
    ("payloads", "decoded", "rejected"),
    [
        # Out of order: what follows is set aside up to the next boundary, and relations until they are described again.
        ([BEGIN, R, I, COMMIT, COMMIT, BEGIN, I, R, I, COMMIT], [2, 8], [4, 6]),
        ([BEGIN, R, I, BEGIN, I, COMMIT, BEGIN, R, I, COMMIT], [2, 8], [3, 4]),
        ([BEGIN, R, I, S, I9, E, BEGIN, I, R, I, COMMIT], [2, 9], [3, 4, 7]),
        ([E, BEGIN, R, I, COMMIT], [3], [0]),
        ([S, R9, I9, COMMIT, I9, E, S_MORE, I9, R9, I9, E, C9], [2, 9], [3, 4, 7]),
        ([S, R9, I9, E, encode.encode_stream_commit(10, 1, 2, 0), BEGIN, R, I, COMMIT, S_MORE, R9, I9, E, C9], [2, 7, 11], [4]),
        # Of a stream never seen: none of its blocks, and not its end.
        ([S_MORE, R9, I9, E, S_MORE, I9, E, C9, BEGIN, R, I, COMMIT], [10], [0, 1, 2, 4, 5, 7]),
        ([C9, PREPARE9, ABORT9, K, ROLLBACK, BEGIN, R, I, COMMIT], [7], [0, 1]),
        # A change outside of any transaction stands alone: no state rests on it.
        ([BEGIN, R, I, COMMIT, I, BEGIN, I, COMMIT], [2, 6], [4]),
    ],
)  # fmt: skip
def test_nothing_is_decoded_under_a_state_that_may_be_wrong(
    payloads: list[bytes], decoded: list[int], rejected: list[int]
) -> None:
    assert quarantined(*payloads) == (decoded, rejected)
    for cut in range(len(payloads) + 1):
        decoder = pgo.Decoder(pgo.Options(on_error="quarantine"))
        first = decoder.decode(payloads[:cut])
        again = pgo.Decoder(decoder.options, pgo.StreamState.from_json(decoder.state.to_json()))
        outs = [first, again.decode(payloads[cut:])]
        rows = [seq for out in outs for each in out.changes for seq in each.batch.column("_seq").to_pylist()]
        assert sorted(rows) == decoded
        assert [seq for out in outs for seq in out.rejects.column("seq").to_pylist()] == rejected


def test_state_that_was_lost_does_not_take_what_it_never_saw() -> None:
    """A resume without the state: ends of streams are errors, ends of what may have been prepared long ago are not."""
    whole = [S, R9, I9, E, PREPARE_BEGIN, R, I, PREPARE]
    for lost in range(1, len(whole)):
        for end in (C9, PREPARE9, S_MORE):
            with pytest.raises(DecodeError) as caught:
                pgo.decode([*whole[lost:], end])
            assert caught.value.seq is not None
    for end in (K, ROLLBACK, ABORT9):
        out = pgo.decode([end])
        assert out.transactions.column("txn").to_pylist() == [None]
        assert out.outcomes.num_rows == 0


@pytest.mark.parametrize(
    "payload",
    [
        encode.encode_stream_abort(9, 10), encode.encode_commit_prepared(1, 2, 0, 7, "g"),
        encode.encode_rollback_prepared(1, 2, 0, 0, 7, "g"), encode.encode_message(1, "p", b"", transactional=False), R,
    ],
)  # fmt: skip
def test_what_is_tolerated_without_its_transaction(payload: bytes) -> None:
    out = pgo.decode([payload])
    assert out.outcomes.num_rows == 0
    assert out.transactions.column("txn").to_pylist() in ([], [None])


def test_a_bad_boundary_loses_everything_to_the_next_one() -> None:
    assert quarantined(BEGIN, R, I, COMMIT[:-1], I, R, BEGIN, I, R, I, COMMIT) == ([2, 9], [3, 4, 5, 7])
    assert quarantined(b"", BEGIN, R, I, COMMIT) == ([3], [0])
    assert quarantined(BEGIN, R, I, b"?", I, COMMIT, BEGIN, I, COMMIT) == ([2], [3, 4, 7])


def test_a_bad_relation_loses_its_own_changes_only() -> None:
    assert quarantined(BEGIN, R, RU, R + b"\0", I, IU, R, I) == ([5, 7], [3, 4])
    assert quarantined(BEGIN, R, RU, b"R\0", I, IU, R, I, IU) == ([7], [3, 4, 5, 8])


def test_a_bad_type_loses_the_next_relation() -> None:
    assert quarantined(BEGIN, b"Y\0\0", R, I, R, I) == ([5], [1, 3])


def test_a_bad_change_loses_nothing_else() -> None:
    assert quarantined(BEGIN, R, I[:-1], I, encode.encode_truncate([1]), I) == ([3, 5], [2, 4])


def test_what_a_stream_learnt_holds_for_it_until_it_commits() -> None:
    assert quarantined(S, R9, I9, E, BEGIN, I, COMMIT, C9, BEGIN, I) == ([2, 9], [5])
    wide = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23), ColumnSpec("more", 23)))
    later = [BEGIN, encode.encode_relation(wide), COMMIT, C9, BEGIN, encode.encode_insert(16384, ["1", "2"])]
    assert quarantined(S, R9, I9, E, *later) == ([2, 9], []), "a plain Relation that came later stays"


def test_a_subtransactions_ddl_goes_with_it() -> None:
    r10, i10 = encode.encode_relation(T, xid=10), encode.encode_insert(16384, ["1"], xid=10)
    assert quarantined(S, r10, i10, E, encode.encode_stream_abort(9, 10), S_MORE, I9) == ([2], [6])


def outcomes(out: pgo.Decoded) -> list[tuple[Any, ...]]:
    return [(o["txn"], o["subxid"], o["outcome"], o["at_seq"]) for o in out.outcomes.to_pylist()]


def test_an_xid_that_begins_again_voids_what_was_open() -> None:
    assert outcomes(pgo.decode([S, E, S, E])) == [(0, None, "aborted", 2)]
    assert outcomes(pgo.decode([S, E, encode.encode_begin(1, 0, 9)])) == [(0, None, "aborted", 2)]
    prepared = encode.encode_stream_prepare(1, 2, 0, 9, "g")
    assert outcomes(pgo.decode([S, E, prepared, encode.encode_begin(1, 0, 9)])) == [(0, None, "aborted", 3)]


def test_a_prepared_transaction_that_is_streamed_again() -> None:
    """A new session may stream what was prepared and acknowledged before, and say no more of it than how it ended."""
    prepared = [S, E, encode.encode_stream_prepare(1, 2, 0, 9, "g")]
    commit, rollback = (
        encode.encode_commit_prepared(3, 4, 0, 9, "g"),
        encode.encode_rollback_prepared(2, 4, 0, 0, 9, "g"),
    )
    assert outcomes(pgo.decode([*prepared, S, E])) == []
    assert outcomes(pgo.decode([*prepared, S, E, S_MORE, E, commit])) == [
        (0, None, "committed", 7), (3, None, "aborted", 7),
    ]  # fmt: skip
    assert outcomes(pgo.decode([*prepared, S, E, rollback])) == [
        (0, None, "aborted", 5),
        (3, None, "aborted", 5),
    ]
    # What is prepared again, for its acknowledgement was lost, or commits as a stream, takes its place.
    assert outcomes(pgo.decode([*prepared, S, E, prepared[2], commit])) == [
        (0, None, "aborted", 5), (3, None, "committed", 6),
    ]  # fmt: skip
    assert outcomes(pgo.decode([*prepared, S, E, C9])) == [(0, None, "aborted", 5), (3, None, "committed", 5)]
    abort = encode.encode_stream_abort(9, 9)
    assert outcomes(pgo.decode([*prepared, S, E, abort, commit])) == [
        (3, None, "aborted", 5), (0, None, "committed", 6),
    ]  # fmt: skip


def test_a_stream_whose_prepare_was_never_seen_is_in_doubt_when_it_ends() -> None:
    """What came of it may be a part of it only."""
    insert = encode.encode_insert(20_000, ["1"], xid=9)
    relation = encode.encode_relation(RelationSpec(20_000, "s", "t", (ColumnSpec("id", 23),)), xid=9)
    commit = encode.encode_commit_prepared(3, 4, 0, 9, "g")
    out = pgo.decode(
        [S, relation, insert, E, commit], options=pgo.Options(transactions="committed", on_error="quarantine")
    )
    assert outcomes(out) == []
    assert out.rejects.column("raw").to_pylist() == [insert]
    assert not out.changes


def test_a_session_voids_streams_and_keeps_what_is_prepared() -> None:
    decoder = pgo.Decoder()
    prepare = [encode.encode_begin_prepare(1, 2, 0, 5, "g"), encode.encode_prepare(1, 2, 0, 5, "g")]
    decoder.decode([*prepare, S, E, encode.encode_stream_start(11, True), E, BEGIN])
    decoder.start_session()
    assert outcomes(decoder.decode([])) == []
    out = decoder.decode([BEGIN, COMMIT, encode.encode_commit_prepared(1, 2, 0, 5, "g")])
    assert outcomes(out) == [
        (2, None, "aborted", 7), (4, None, "aborted", 7), (6, None, "aborted", 7), (7, None, "committed", 8), (0, None, "committed", 9),
    ]  # fmt: skip


def test_ten_thousand_relations_in_one_stream_are_quick() -> None:
    count = 10_000
    specs = [RelationSpec(20_000 + k, "s", f"t{k}", (ColumnSpec("id", 23),)) for k in range(count)]
    payloads = [S]
    payloads += [encode.encode_relation(spec, xid=9) for spec in specs]
    payloads += [encode.encode_insert(spec.oid, ["1"], xid=9) for spec in specs] * 3
    payloads += [encode.encode_relation(spec, xid=9) for spec in specs]
    out = pgo.decode([*payloads, E, C9])
    assert len(out.changes) == count


# --- prepared transactions whose end is not read ------------------------------------------------------------


def prepared(xid: int, gid: str, *rows: bytes) -> list[bytes]:
    return [
        encode.encode_begin_prepare(1, 2, 0, xid, gid),
        R,
        *rows,
        encode.encode_prepare(1, 2, 0, xid, gid),
    ]


def ended(*payloads: bytes, view: str = "committed") -> tuple[list[int], list[int], list[tuple[int, str]]]:
    """(seqs of rows, seqs of rejects, (transaction, outcome)); however calls are cut."""
    found: set[str] = set()
    for cut in range(len(payloads)):
        decoder = pgo.Decoder(pgo.Options(on_error="quarantine", transactions=view))
        outs = [decoder.decode(payloads[:cut])]
        state = pgo.StreamState.from_json(decoder.state.to_json())
        decoder = pgo.Decoder(decoder.options, state)
        outs.append(decoder.decode(payloads[cut:]))
        rows = [n for out in outs for each in out.changes for n in each.batch.column("_seq").to_pylist()]
        rejects = [n for out in outs for n in out.rejects.column("seq").to_pylist()]
        outcomes = [(row["txn"], row["outcome"]) for out in outs for row in out.outcomes.to_pylist()]
        result = sorted(rows), sorted(rejects), outcomes
        found.add(repr(result))
    assert len(found) == 1
    return result


OURS, OTHERS = prepared(7, "g", I), prepared(8, "h", I)
ROLLBACK7 = encode.encode_rollback_prepared(2, 3, 0, 0, 7, "g")
K8 = encode.encode_commit_prepared(1, 2, 0, 8, "h")


@pytest.mark.parametrize("end", [K, ROLLBACK7], ids=["commit", "rollback"])
@pytest.mark.parametrize(
    "damage", [lambda end: end + b"\0", lambda end: end[:-1], lambda end: end[:1] + b"\1" + end[2:]]
)
def test_a_damaged_end_sets_the_prepared_transaction_aside_that_it_names(end: bytes, damage: Any) -> None:
    """Nobody knows what became of it; others are what they were."""
    assert ended(*OURS, *OTHERS, damage(end), K8) == ([6], [2, 8], [(4, "committed")])
    assert ended(*OURS, damage(end), view="as_sent") == ([2], [4], [])
    # An end that comes where none can is damage, too: messages before it are missing.
    assert ended(*OURS, encode.encode_begin(100, 0, 5), end) == ([], [2, 5], [])


@pytest.mark.parametrize("damaged", [K[:20], b"?" + K[1:], b"C"])
def test_prepared_transactions_that_perhaps_ended_wait_for_their_end(damaged: bytes) -> None:
    assert ended(*OURS, damaged, K) == ([2], [4], [(0, "committed")])
    assert ended(*OURS, damaged, ROLLBACK7) == ([], [4], [(0, "aborted")])
    assert ended(*OURS, damaged, BEGIN, COMMIT) == ([], [2, 4], [(5, "committed")])  # its xid comes again
    again = prepared(9, "g")
    assert ended(*OURS, damaged, *again, encode.encode_commit_prepared(1, 2, 0, 9, "g")) == (
        [], [2, 4], [(5, "committed")],
    )  # fmt: skip
    assert ended(*OURS, *prepared(10, "g", I), damaged, *again) == ([], [2, 6, 8], [])
    assert ended(*OURS, damaged, S, E, PREPARE9) == ([], [2, 4], [])  # its name, prepared by a stream
    assert ended(*OURS, damaged, *prepared(9, "other")) == ([], [4], [])


def test_a_prepared_transaction_that_is_sent_again_is_void() -> None:
    assert ended(*OURS, *OURS, K) == ([6], [], [(0, "aborted"), (4, "committed")])


# --- the relation that a reject names -------------------------------------------------------------------------


def named_rejects(*payloads: bytes, view: str = "as_sent") -> list[tuple[int, str | None]]:
    out = pgo.decode(list(payloads), options=pgo.Options(on_error="quarantine", transactions=view))
    return [(row["seq"], row["relation"]) for row in out.rejects.to_pylist()]


def test_rejects_name_the_relation_that_is_lost() -> None:
    assert named_rejects(BEGIN, R, R + b"\0", I, encode.encode_truncate([T.oid])) == [
        (2, None), (3, "public.t"), (4, "public.t"),
    ]  # fmt: skip
    assert named_rejects(BEGIN, R, b"?", BEGIN, I) == [(2, None), (4, "public.t")]
    assert named_rejects(S, R9, E, ABORT9, BEGIN, I) == [(5, "public.t")]  # described once, and rolled back
    assert named_rejects(BEGIN, I, R[:-1], I) == [(1, None), (2, None), (3, None)]  # never described
    odd = encode.encode_relation(RelationSpec(T.oid, 'a"b', "Order", T.columns))
    assert named_rejects(BEGIN, odd, odd + b"\0", I)[1:] == [(3, '"a""b"."Order"')]
    assert named_rejects(BEGIN, R, odd, R, R + b"\0", I)[1:] == [(5, None)]  # under which of its names?


def test_rejects_name_the_relation_of_changes_whose_transaction_is_lost() -> None:
    both = encode.encode_truncate([T.oid])
    assert named_rejects(*prepared(7, "g", I, both), K + b"\0", view="committed") == [
        (2, "public.t"), (3, None), (5, None),
    ]  # fmt: skip


def test_an_error_names_the_relation_that_is_lost() -> None:
    decoder = pgo.Decoder(pgo.Options(on_error="quarantine"))
    decoder.decode([BEGIN, R, R + b"\0"])
    with pytest.raises(DecodeError, match=r"relation public\.t"):
        pgo.Decoder(state=decoder.state).decode([I])


def test_one_lsn_is_one_logical_message() -> None:
    """A reconnect that nobody marked: messages come again under their own LSNs, which no others have."""
    lsns = (50, 60, 60, 0, 0, 55, 50, 60, 70, 55, 60, 70)
    wal = [
        encode.encode_message(lsn, "p", str(k).encode(), transactional=False) for k, lsn in enumerate(lsns)
    ]
    out = pgo.decode(wal)
    assert out.messages.column("content").to_pylist() == [b"0", b"1", b"3", b"4", b"5", b"8"]
    assert pgo.tag(wal)[0].column("seq").to_pylist() == [0, 1, 3, 4, 5, 8]
