"""Stretches of a stream, summarised apart, give the states that tagging it in one piece goes through."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast import DecodeError, StreamState, encode, tag
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.summary import Summary, summarize
from pgoutput_fast.xids import XidSet
from strategies import damaged_streams, streams
from streams import RandomChoices, Stream, damage, make_stream

CONTROLS = b"BCSEcAbPpKrRYO"
T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))


def array(payloads: list[bytes]) -> pa.Array:
    return pa.array(payloads, pa.binary())


def states_of(stream: Stream) -> tuple[list[StreamState], DecodeError | None]:
    """The state before each message that can be tagged, and behind the last; the error that ends it."""
    states = [StreamState()]
    for payload, lsn in zip(stream.payloads, stream.lsns, strict=True):
        try:
            states.append(tag([payload], states[-1], lsn=[lsn])[1])
        except DecodeError as error:
            return states, error
    return states, None


def part(stream: Stream, begin: int, end: int) -> Summary:
    return summarize(array(stream.payloads[begin:end]), pa.array(stream.lsns[begin:end], pa.int64()))


def values(state: StreamState) -> Any:
    """What the state says; None and that of an empty stream are one."""
    return state.values or tag([], state)[1].values


def outcome(summary: Summary, state: StreamState) -> Any:
    try:
        return values(summary.apply(state))
    except DecodeError as error:
        return str(error)


def check_stretch(
    stream: Stream, states: list[StreamState], error: DecodeError | None, i: int, j: int
) -> None:
    summary = part(stream, i, j)
    assert Summary.from_bytes(summary.to_bytes()) == summary
    if error is None or j < len(states):
        assert values(summary.apply(states[i])) == values(states[j])
    elif (stream.payloads[len(states) - 1][:1] or b"?") in CONTROLS or not stream.payloads[len(states) - 1]:
        with pytest.raises(DecodeError) as caught:
            summary.apply(states[i])
        assert str(caught.value) == str(error)


def check_law(stream: Stream, states: list[StreamState], i: int, cuts: list[int]) -> None:
    """Three stretches: the order of composition does not matter, and stretches are as good as the whole."""
    a, b, c = (part(stream, x, y) for x, y in zip([i, *cuts[:-1]], cuts, strict=True))
    left, right, whole = a.then(b).then(c), a.then(b.then(c)), part(stream, i, cuts[-1])
    if whole.failed:
        # Which of the messages before an error are kept is nobody's business.
        assert left.failed
        assert right.failed
        for state in states:
            assert outcome(left, state) == outcome(right, state) == outcome(whole, state)
    else:
        assert left == right == whole
    assert Summary().then(a) == a == a.then(Summary())


def check_all(stream: Stream, seed: int, every: int = 1) -> None:
    states, error = states_of(stream)
    count = len(stream.payloads)
    chance = random.Random(seed)
    for i in range(len(states)):
        for j in range(i, count + 1):
            if every == 1 or chance.randrange(every) == 0:
                check_stretch(stream, states, error, i, j)
    for _ in range(20):
        i, *cuts = sorted(chance.randrange(count + 1) for _ in range(4))
        check_law(stream, states, i, cuts)


@pytest.mark.parametrize("seed", range(40))
def test_every_stretch_of_random_streams(seed: int) -> None:
    check_all(make_stream(RandomChoices(seed), 10), seed, every=1 if seed < 8 else 8)


@pytest.mark.parametrize("seed", range(100))
def test_stretches_of_damaged_streams(seed: int) -> None:
    choices = RandomChoices(seed)
    check_all(damage(choices, make_stream(choices, 8), 1 + seed % 3), seed, every=8)


@settings(max_examples=60, deadline=None)
@given(st.one_of(streams(), damaged_streams()), st.integers(0, 10**6))
def test_stretches_of_streams_that_hypothesis_makes(stream: Stream, seed: int) -> None:
    check_all(stream, seed, every=20)


def test_batches_may_end_anywhere() -> None:
    for seed in range(30):
        stream = make_stream(RandomChoices(seed), 12)
        chance = random.Random(seed)
        cuts = sorted(chance.randrange(len(stream.payloads) + 1) for _ in range(5))
        edges = [0, *cuts, len(stream.payloads)]
        chunks = [array(stream.payloads[x:y]) for x, y in itertools.pairwise(edges)]
        assert summarize(pa.chunked_array(chunks, pa.binary())) == summarize(array(stream.payloads))


def plain(xid: int, *body: bytes) -> list[bytes]:
    return [encode.encode_begin(xid, 0, xid), *body, encode.encode_commit(xid, xid + 8, 0)]


def streamed(xid: int, *body: bytes, first: bool = True) -> list[bytes]:
    return [encode.encode_stream_start(xid, first), *body, encode.encode_stream_stop()]


def insert(xid: int | None = None) -> bytes:
    return encode.encode_insert(16384, ["1"], xid=xid)


def many(count: int) -> list[bytes]:
    """Transactions of every kind, all of which end, and one that was open before them."""
    payloads = streamed(5, insert(5), first=False)
    for n in range(count):
        xid = 10 + 10 * n
        relation = encode.encode_relation(T)
        in_stream = encode.encode_relation(T, xid=xid + 1)
        payloads += plain(xid, relation, encode.encode_origin(7, "o"), insert())
        payloads += streamed(xid + 1, in_stream, insert(xid + 1))
        payloads += streamed(5, insert(5), first=False)
        payloads += streamed(xid + 1, in_stream, encode.encode_relation(T, xid=xid + 2), first=False)
        payloads += [
            encode.encode_stream_abort(xid + 1, xid + 2),
            encode.encode_stream_commit(xid + 1, 300, 308, 0),
        ]
        payloads += [*streamed(xid + 3, insert(xid + 3)), encode.encode_stream_abort(xid + 3, xid + 3)]
        payloads += [encode.encode_begin_prepare(1, 2, 0, xid + 4, "g"), insert()]
        payloads += [encode.encode_prepare(1, 2, 0, xid + 4, "g")]
        payloads += [
            *streamed(xid + 5, insert(xid + 5)),
            encode.encode_stream_prepare(1, 2, 0, xid + 5, "h"),
        ]
        payloads += [encode.encode_commit_prepared(3, 4, 0, xid + 4, "g")]
        payloads += [encode.encode_rollback_prepared(2, 4, 0, 0, xid + 5, "h")]
        payloads += [encode.encode_message(3, "p", b"x" * 100, transactional=False)]
    return payloads


def test_the_size_is_that_of_what_is_open_and_not_of_what_is_over() -> None:
    few, lots = summarize(array(many(2))), summarize(array(many(2000)))
    for summary in (few, lots):
        assert [chr(m.payload[0]) for m in summary.body] == ["S", "E"]
        assert [chr(m.payload[0]) for m in summary.said] == ["R"]
    assert len(lots.to_bytes()) < len(few.to_bytes()) + 300  # some more ranges of xids


def test_xids_that_begin_one_after_the_other_are_few_bytes() -> None:
    payloads = [message for xid in range(1000, 21000) for message in plain(xid, insert())]
    summary = summarize(array(payloads))
    assert summary.begun == ((1001, 21000),)  # the first is there as it came
    assert len(summary.to_bytes()) < 400


@pytest.mark.parametrize(
    "rest",
    [
        [*plain(5), encode.encode_stream_commit(5, 1, 2, 0)],
        [*plain(5), *streamed(5, first=False)],
        [*streamed(5, first=False), *plain(5), encode.encode_stream_commit(5, 1, 2, 0)],
        [encode.encode_stream_abort(5, 6), *plain(5), *streamed(5), *streamed(5, first=False)],
        [*streamed(5, encode.encode_relation(T, xid=5)), *plain(5), *plain(6)],
        [*streamed(6), encode.encode_stream_prepare(1, 2, 0, 6, "g"), *plain(6), *plain(5)],
    ],
)
def test_an_xid_that_begins_again(rest: list[bytes]) -> None:
    """What was open under it is void, whether it was opened here or before."""
    before = [*streamed(5, encode.encode_relation(T, xid=5), insert(5)), *plain(9)]
    stream = Stream([*before, *rest, *plain(10)], [0] * (len(before) + len(rest) + 2), set())
    check_all(stream, 1)
    states, error = states_of(stream)
    every = list(itertools.combinations(range(len(stream.payloads) + 1), 4))
    for i, *cuts in random.Random(5).sample(every, 300):
        check_law(stream, states, i, cuts)
    assert (error is None) == (len(states) > len(stream.payloads))


def test_garbage_does_not_travel() -> None:
    """Of payloads that are none no more is kept than the error needs."""
    payloads = [("\\x" + "00" * 5000).encode()] * 1000
    summary = summarize(array(payloads))
    assert len(summary.to_bytes()) < 300
    with pytest.raises(DecodeError, match="message 0, byte 0: this is text, as SQL output shows bytes"):
        summary.apply(StreamState())


def test_ranges_of_xids() -> None:
    chance = random.Random(3)
    for _ in range(200):
        members: set[int] = set()
        xids = XidSet()
        for _ in range(chance.randrange(5)):
            some = [chance.randrange(30) for _ in range(chance.randrange(8))]
            members |= set(some)
            if chance.randrange(2):
                xids.add(np.array(some, np.uint32))
            else:
                other = XidSet()
                other.add(some)
                xids.update(other)
            if chance.randrange(2):
                assert [x for x in range(32) if x in xids] == sorted(members)
        assert [x for begin, end in xids.ranges() for x in range(begin, end)] == sorted(members)
        assert XidSet(reversed(xids.ranges())).ranges() == xids.ranges()
    top = XidSet()
    top.add(np.array([2**32 - 1, 0], np.uint32))
    assert top.ranges() == [(0, 1), (2**32 - 1, 2**32)]
