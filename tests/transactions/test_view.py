"""The committed view."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import DecodeError, Decoder, Options, encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
COMMITTED = Options(transactions="committed")
R9 = encode.encode_relation(T, xid=9)
STOP = encode.encode_stream_stop()


def start(xid: int = 9, first: bool = True) -> bytes:
    return encode.encode_stream_start(xid, first)


def insert(k: int, xid: int | None = None) -> bytes:
    return encode.encode_insert(16384, [str(k)], xid=xid)


def plain(*ks: int) -> list[bytes]:
    body = [encode.encode_relation(T), *map(insert, ks)]
    return [encode.encode_begin(100, 0, 7), *body, encode.encode_commit(100, 108, 0)]


def committed(*payloads: bytes, options: Options = COMMITTED) -> list[tuple[Any, ...]]:
    """(id, _seq, _commit_lsn) of what comes out, in apply order; the same when every message is a call of its own."""
    out = pgo.decode(list(payloads), options=options)
    decoder = Decoder(options)
    single = []
    for payload in payloads:
        single += rows(decoder.decode([payload]))
        decoder = Decoder(options, pickle.loads(pickle.dumps(decoder.state)))
    assert single == rows(out)
    return single


def rows(out: pgo.Decoded) -> list[tuple[Any, ...]]:
    if not out.changes:
        return []
    table = out.table("public.t")
    return list(zip(*(table.column(c).to_pylist() for c in ("id", "_seq", "_commit_lsn")), strict=True))


def test_changes_come_with_their_commit() -> None:
    assert committed(*plain(1, 2)) == [(1, 2, 100), (2, 3, 100)]
    assert committed(*plain(1, 2)[:-1]) == []
    stream = [start(), R9, insert(5, 9), STOP]
    assert committed(*stream) == []
    assert committed(*stream, *plain(1), encode.encode_stream_commit(9, 300, 308, 5)) == [
        (1, 6, 100),
        (5, 2, 300),
    ]
    assert committed(*stream, encode.encode_stream_abort(9, 9)) == []


def test_a_subtransactions_rows_go_with_it() -> None:
    stream = [
        start(),
        R9,
        insert(1, 9),
        insert(2, 10),
        insert(3, 11),
        STOP,
        encode.encode_stream_abort(9, 10),
    ]
    more = [start(first=False), R9, insert(4, 10), STOP, encode.encode_stream_commit(9, 300, 308, 0)]
    assert committed(*stream, *more) == [(1, 2, 300), (3, 4, 300), (4, 9, 300)], (
        "an xid that comes again is another"
    )


def test_prepared_transactions_wait() -> None:
    prepare = [
        encode.encode_begin_prepare(1, 2, 0, 8, "g"),
        encode.encode_relation(T),
        insert(1),
        encode.encode_prepare(1, 2, 0, 8, "g"),
    ]
    assert committed(*prepare) == []
    assert committed(*prepare, *plain(2), encode.encode_commit_prepared(400, 408, 0, 8, "g")) == [
        (2, 6, 100),
        (1, 2, 400),
    ]
    assert committed(*prepare, encode.encode_rollback_prepared(2, 5, 0, 0, 8, "g")) == []
    stream = [start(), R9, insert(5, 9), STOP, encode.encode_stream_prepare(1, 2, 0, 9, "g")]
    assert committed(*stream, encode.encode_commit_prepared(400, 408, 0, 9, "g")) == [(5, 2, 400)]


def test_rolled_back_changes_may_be_anything() -> None:
    bad = encode.encode_insert(16384, ["x"], xid=10)
    stream = [start(), R9, bad, insert(1, 9), STOP]
    done = encode.encode_stream_commit(9, 300, 308, 0)
    assert committed(*stream, encode.encode_stream_abort(9, 10), done) == [(1, 3, 300)]
    with pytest.raises(DecodeError) as caught:
        pgo.decode([*stream, done], options=COMMITTED)
    assert (caught.value.seq, caught.value.column) == (2, "id")


def test_messages() -> None:
    alone = encode.encode_message(5, "now", b"", transactional=False)
    inside = encode.encode_message(6, "later", b"", xid=9)
    decoder = Decoder(COMMITTED)
    assert decoder.decode([start(), inside, STOP, alone]).messages.column("prefix").to_pylist() == ["now"]
    done = [encode.encode_stream_abort(9, 10), encode.encode_stream_commit(9, 300, 308, 0)]
    assert decoder.decode(done).messages.column("prefix").to_pylist() == ["later"]


def test_a_failed_call_holds_nothing_back() -> None:
    decoder = Decoder(COMMITTED)
    decoder.decode([start(), R9, insert(1, 9), STOP])
    before = decoder.state
    for bad in (
        [start(first=False), insert(2, 9), STOP, b"?"],
        [*plain(3)[:-2], encode.encode_insert(16384, ["x"]), plain()[-1]],
    ):
        with pytest.raises(DecodeError):
            decoder.decode(bad)
        assert decoder.state == before
    assert rows(decoder.decode([encode.encode_stream_commit(9, 300, 308, 0)])) == [(1, 2, 300)]


def test_what_a_bad_boundary_cuts_off_is_rejected_not_lost() -> None:
    decoder = Decoder(Options(transactions="committed", on_error="quarantine"))
    message = encode.encode_message(6, "p", b"")
    first = [
        encode.encode_begin(100, 0, 7),
        encode.encode_relation(T),
        insert(1),
        message,
        encode.encode_truncate([16384]),
    ]
    assert decoder.decode(first).rejects.num_rows == 0
    out = decoder.decode([insert(2), b"C\0\0", insert(3), *plain(4)])
    assert out.rejects.column("seq").to_pylist() == [2, 3, 4, 5, 6, 7]
    assert out.rejects.column("raw").to_pylist()[:3] == first[2:]
    assert rows(out) == [(4, 10, 100)]
    assert decoder.state.reorder_buffer is None


BAD_ABORT = encode.encode_stream_abort(9, 10)[:-1]
BEFORE = [start(), R9, insert(1, 9), insert(2, 10), STOP]
DONE = encode.encode_stream_commit(9, 300, 308, 0)


def quarantined(*payloads: bytes, sessions: Sequence[int] = ()) -> tuple[list[int], list[int], list[str]]:
    """Ids given, seqs set aside, outcomes; the same when every message is a call of its own and all waits in files."""
    found = []
    for calls, limit in (([[each] for each in payloads], 1), ([list(payloads)], 1 << 20)):
        options = Options(transactions="committed", on_error="quarantine", memory_limit=limit)
        decoder = Decoder(options)
        outs = []
        edges = sorted({0, *sessions, len(payloads)}) if len(calls) == 1 else range(len(payloads) + 1)
        for begin, end in itertools.pairwise(edges):
            if begin in sessions:
                decoder.start_session()
            outs += list(decoder.stream([list(payloads[begin:end])]))
            decoder = Decoder(options, pickle.loads(pickle.dumps(decoder.state)))
        assert decoder.state.reorder_buffer is None
        found.append(
            (
                [k for out in outs for k, _, _ in rows(out)],
                sorted(seq for out in outs for seq in out.rejects.column("seq").to_pylist()),
                [each for out in outs for each in out.outcomes.column("outcome").to_pylist()],
            )
        )
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("bad", [BAD_ABORT, b"", b"?", DONE[:-1], encode.encode_commit(1, 2, 0), insert(1)])
def test_a_message_between_transactions_that_was_not_understood_may_have_been_an_abort(bad: bytes) -> None:
    """So what waits of open streams is not given at their commit, but set aside. What comes later is not concerned."""
    later = [start(11), encode.encode_relation(T, xid=11), insert(3, 11), STOP]
    message = encode.encode_message(6, "p", b"", xid=9)
    stream = [*BEFORE[:-1], message, STOP, bad, *later, encode.encode_stream_commit(11, 200, 208, 0), DONE]
    assert quarantined(*stream) == ([3], [2, 3, 4, 6], ["committed"])
    out = pgo.decode(stream, options=Options(transactions="committed", on_error="quarantine"))
    assert out.messages.num_rows == 0
    reasons = set(out.rejects.filter(pc.not_equal(out.rejects.column("seq"), 6)).column("reason").to_pylist())
    assert len(reasons) == 1
    assert "it is unknown whether this change was committed" in reasons.pop()


def test_a_message_inside_a_transaction_or_block_was_no_abort() -> None:
    for bad in (b"?", plain()[-1][:-1]):
        middle = [*plain(5)[:-1], bad, *plain(6)]
        assert quarantined(*BEFORE, *middle, DONE)[0] == [6, 1, 2]
    block = [start(first=False), b"?", insert(7, 9), STOP]
    assert quarantined(*BEFORE, *block, DONE) == ([1, 2], [6, 7], ["committed"])
    bad_change = [encode.encode_begin(100, 0, 7), R9[:1] + R9[5:], insert(5)[:-1], plain()[-1]]
    assert quarantined(*BEFORE, *bad_change, DONE)[0] == [1, 2]


@pytest.mark.parametrize(
    "gap",
    [
        [encode.encode_begin(100, 0, 7), encode.encode_commit(101, 108, 0)],
        [encode.encode_begin(100, 0, 7), start(12), STOP],
        [start(12), encode.encode_begin(100, 0, 7)],
        [encode.encode_begin_prepare(1, 2, 0, 8, "g"), encode.encode_prepare(1, 2, 0, 8, "h")],
    ],
)
def test_a_message_that_comes_too_early_shows_that_others_are_missing(gap: list[bytes]) -> None:
    given, aside, outcomes = quarantined(*BEFORE, *gap, encode.encode_stream_abort(12, 12), DONE)
    assert (given, aside[:2]) == ([], [2, 3])
    assert "committed" not in outcomes


def test_a_doubt_goes_with_its_transaction() -> None:
    aborted = encode.encode_stream_abort(9, 10)
    assert quarantined(*BEFORE, BAD_ABORT, aborted, DONE) == ([], [2, 5], ["aborted"])
    assert quarantined(*BEFORE, BAD_ABORT, encode.encode_stream_abort(9, 9)) == ([], [5], ["aborted"])
    prepared = [*BEFORE, BAD_ABORT, encode.encode_stream_prepare(1, 2, 0, 9, "g")]
    commit = encode.encode_commit_prepared(400, 408, 0, 9, "g")
    assert quarantined(*prepared, commit) == ([], [2, 3, 5], [])
    assert quarantined(*prepared, encode.encode_rollback_prepared(2, 5, 0, 0, 9, "g")) == (
        [],
        [5],
        ["aborted"],
    )
    # What is prepared already has no subtransactions left that could be rolled back.
    sound = [*BEFORE, encode.encode_stream_prepare(1, 2, 0, 9, "g"), BAD_ABORT, commit]
    assert quarantined(*sound) == ([1, 2], [6], ["committed"])


def test_a_doubtful_transaction_that_is_void_may_have_been_committed() -> None:
    again = [start(), R9, insert(1, 9), STOP, DONE]
    assert quarantined(*BEFORE, DONE[:-1], *again, sessions=[6]) == ([1], [2, 3, 5], ["committed"])
    assert quarantined(*BEFORE, DONE[:-1], *again) == ([1], [2, 3, 5], ["committed"])
    plainly = [encode.encode_begin(100, 0, 9), *plain(1)[1:]]
    assert quarantined(*BEFORE, DONE[:-1], *plainly) == ([1], [2, 3, 5], ["committed"])
    assert quarantined(*BEFORE, *again, sessions=[5]) == ([1], [], ["aborted", "committed"])


def test_tagged_payloads_of_a_doubtful_transaction_are_not_given_either() -> None:
    quarantine = Options(transactions="committed", on_error="quarantine")
    outcomes = pgo.decode([*BEFORE, BAD_ABORT, DONE, *plain(4)], options=quarantine).outcomes
    seqs = [*range(5), *range(6, 11)]
    tagged, state = pgo.tag([*BEFORE, DONE, *plain(4)], seq=seqs)
    assert rows(pgo.decode_tagged(tagged, state.catalog, COMMITTED, outcomes)) == [(4, 9, 100)]


def test_a_session_drops_what_was_open() -> None:
    decoder = Decoder(COMMITTED)
    decoder.decode([start(), R9, insert(1, 9), STOP])
    decoder.start_session()
    out = decoder.decode([start(), R9, insert(1, 9), STOP, encode.encode_stream_commit(9, 300, 308, 0)])
    assert rows(out) == [(1, 6, 300)]


STREAMED = [start(), R9, insert(1, 9), STOP]
BEGUN = [encode.encode_begin(100, 0, 7), encode.encode_relation(T), insert(1)]
PREPARED = [
    encode.encode_begin_prepare(1, 2, 0, 8, "g"),
    encode.encode_relation(T),
    insert(1),
    encode.encode_prepare(1, 2, 0, 8, "g"),
]


@pytest.mark.parametrize("earlier", [STREAMED, BEGUN, PREPARED])
def test_a_state_that_lacks_the_changes_of_an_open_transaction(earlier: list[bytes]) -> None:
    """The rows so far would be lost, if what gave the state is not the one that applies them."""
    as_sent = Decoder()
    as_sent.decode(earlier)
    saved = pgo.StreamState.from_json(as_sent.state.to_json())
    for state in (pgo.tag(earlier)[1], as_sent.state, saved):
        decoder = Decoder(COMMITTED, state)
        with pytest.raises(
            ValueError, match=r"open and \d prepared transactions, but not their changes so far"
        ):
            decoder.decode(plain(2))
        with pytest.raises(ValueError, match="not a state of the committed view"):
            list(decoder.stream([plain(2)]))
        # What is saved of a decoder that gave nothing still lacks the changes.
        for again in (decoder.state, pgo.StreamState.from_json(decoder.state.to_json())):
            with pytest.raises(ValueError, match="not a state of the committed view"):
                Decoder(COMMITTED, again).decode(plain(2))
        if earlier is not PREPARED:
            # The server sends an open transaction again.
            decoder.start_session()
            assert [row[0] for row in rows(decoder.decode(plain(1, 2)))] == [1, 2]


def test_a_state_as_sent_before_a_session() -> None:
    as_sent = Decoder()
    as_sent.decode(STREAMED)
    as_sent.start_session()
    assert [row[0] for row in rows(Decoder(COMMITTED, as_sent.state).decode(plain(1, 2)))] == [1, 2]


def test_a_state_as_sent_between_transactions() -> None:
    as_sent = Decoder()
    as_sent.decode([*plain(1), *STREAMED, encode.encode_stream_commit(9, 200, 208, 0)])
    assert [row[0] for row in rows(Decoder(COMMITTED, as_sent.state).decode(plain(2)))] == [2]


def test_many_calls_and_many_aborts_are_quick() -> None:
    decoder = Decoder(COMMITTED)
    decoder.decode([start(), R9, STOP])
    for k in range(300):
        decoder.decode([start(first=False), *[insert(k, 10 + k)] * 100, STOP])
    aborts = [encode.encode_stream_abort(9, 10 + k) for k in range(0, 300, 2)]
    out = decoder.decode([*aborts, encode.encode_stream_commit(9, 300, 308, 0)])
    assert sum(each.batch.num_rows for each in out.changes) == 15_000


def test_a_commits_own_time_counts() -> None:
    """No server sends another than the Begin announced; a damaged stream may."""
    stream = [*plain(1, 2)[:-1], encode.encode_commit(100, 108, 5_000_000)]
    for calls in ([stream], [stream[:3], stream[3:]], [stream[:-1], stream[-1:]]):
        decoder = Decoder(COMMITTED)
        outs = [decoder.decode(call) for call in calls]
        times = {
            time.second
            for out in outs
            for each in out.changes
            for time in each.batch.column("_commit_timestamp").to_pylist()
        }
        assert times == {5}


def test_ordinals_and_positions_of_the_callers_own() -> None:
    """Whatever a call is cut into, each payload keeps its seq and LSN."""
    stream = [
        *plain(1),
        start(),
        R9,
        insert(2, 9),
        STOP,
        *plain(*range(10, 700)),
        encode.encode_stream_commit(9, 300, 308, 0),
    ]
    seqs = [3 * k + 7 for k in range(len(stream))]
    lsns = [10 * k for k in seqs]
    expected = [(k, lsn) for k, lsn, payload in zip(seqs, lsns, stream, strict=True) if payload[:1] == b"I"]
    batch = pa.record_batch(
        [pa.array(stream), pa.array(lsns), pa.array(seqs)], names=["payload", "lsn", "seq"]
    )
    for chunks in ([len(stream)], [2, 5, 100, len(stream)]):
        decoder = Decoder(COMMITTED)
        begins = [0, *chunks[:-1]]
        pieces = [batch.slice(a, b - a) for a, b in zip(begins, chunks, strict=True)]
        found = []
        for out in decoder.stream(pieces):
            for each in out.changes:
                found += zip(
                    each.batch.column("_seq").to_pylist(), each.batch.column("_lsn").to_pylist(), strict=True
                )
        assert sorted(found) == expected
        assert decoder.state.next_seq == seqs[-1] + 1


@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_a_plain_transaction_that_a_call_cuts(limit: int) -> None:
    """What waits of it is decoded in one go with its rest and what follows: the same as in one call."""
    message = encode.encode_message(6, "p", b"")
    alone = encode.encode_message(5, "q", b"", transactional=False)
    truncate, bad = encode.encode_truncate([16384]), encode.encode_insert(16384, ["x"])
    stream = [*plain(1, 2)[:-1], message, truncate, alone, bad, insert(3), plain()[-1], *plain(4), *plain(5)]
    options = Options(transactions="committed", on_error="quarantine", memory_limit=limit)
    whole = pgo.decode(stream, options=options)
    assert whole.rejects.column("seq").to_pylist() == [7]
    for cut in range(len(stream)):
        decoder = Decoder(options)
        outs = [decoder.decode(stream[:cut])]
        decoder = Decoder(options, pickle.loads(pickle.dumps(decoder.state)))
        outs.append(decoder.decode(stream[cut:]))
        assert [row for out in outs for row in rows(out)] == rows(whole)
        for name in ("truncates", "rejects", "transactions", "outcomes"):
            found = [row for out in outs for row in getattr(out, name).to_pylist()]
            assert found == getattr(whole, name).to_pylist(), name
        prefixes = [each for out in outs for each in out.messages.column("prefix").to_pylist()]
        assert sorted(prefixes) == ["p", "q"]
        assert decoder.state.reorder_buffer is None


def test_a_piece_per_batch_where_nothing_is_large() -> None:
    decoder = Decoder(COMMITTED)
    outs = list(decoder.stream([plain(1), [], [start(), R9, insert(2, 9), STOP], plain(3)[:2], plain(3)[2:]]))
    assert [[k for k, _, _ in rows(out)] for out in outs] == [[1], [], [], [], [3]]


def test_what_is_given_comes_in_the_order_of_the_commits() -> None:
    """Also where plain transactions are decoded at once, and others wait in the reorder buffer between them."""
    decoder = Decoder(COMMITTED)
    prepared = [
        encode.encode_begin_prepare(1, 2, 0, 8, "g"),
        insert(1),
        encode.encode_prepare(1, 2, 0, 8, "g"),
    ]
    ks = list(range(100, 700))
    call = [*plain(0), *prepared, *plain(*ks), start(), R9, insert(2, 9), STOP]
    call += [
        encode.encode_commit_prepared(110, 118, 0, 8, "g"),
        *plain(*ks),
        encode.encode_stream_commit(9, 300, 308, 0),
    ]
    found = [k for each in decoder.decode(call).changes for k in each.batch.column("id").to_pylist()]
    assert found == [0, *ks, 1, *ks, 2]


def test_messages_and_truncates_keep_their_order_across_calls() -> None:
    server = encode.Writer(2)
    before = server.begin(7, 100, 0) + server.message(10, "p", b"first") + server.truncate([T])
    behind = server.message(11, "p", b"second") + server.truncate([T]) + server.commit(100, 108, 0)
    whole = pgo.Decoder(pgo.Options(transactions="committed")).decode(before + behind)
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    assert len(decoder.decode(before).changes) == 0
    cut = decoder.decode(behind)
    assert cut.messages.column("content").to_pylist() == [b"first", b"second"]
    assert cut.messages.equals(whole.messages)
    assert cut.truncates.equals(whole.truncates)
