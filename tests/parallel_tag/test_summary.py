"""Ranges of a stream, summarised apart, give the states that tagging it in one piece goes through."""

from __future__ import annotations

import itertools
import random
import re
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast import DecodeError, Decoder, Options, StreamState, encode, tag
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.parallel_tag.summarizer import Summarizer, compose, summarize
from pgoutput_fast.parallel_tag.summary import Summary
from pgoutput_fast.parallel_tag.survey import RangeSurvey
from pgoutput_fast.parallel_tag.xid_ranges import XidSet
from pgoutput_fast.spark.tasks.survey import Survey, Surveyor
from pgoutput_fast.transactions.outcomes import TransactionOutcomes
from support.fixtures import FILES, read
from support.forms import and_exhaustive, and_slow
from support.interleaved import everything
from support.strategies import damaged_streams, streams
from support.streams import RandomChoices, Stream, damage, listed_outcomes, make_stream

CONTROLS = b"BCSEcAbPpKrRYO"
T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
WIDER = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23), ColumnSpec("more", 20001)))


def array(payloads: list[bytes]) -> pa.Array:
    return pa.array(payloads, pa.binary())


def marked(state: StreamState) -> StreamState:
    decoder = Decoder(state=state)
    decoder.start_session()
    return decoder.state


def states_of(
    stream: Stream, state: StreamState | None = None, begin: int = 0
) -> tuple[list[StreamState], DecodeError | None]:
    """The state before each message that can be tagged, and behind the last; the error that ends it."""
    states = [StreamState() if state is None else state]
    for k in range(begin, len(stream.payloads)):
        before = marked(states[-1]) if k in stream.sessions else states[-1]
        try:
            states.append(tag([stream.payloads[k]], before, lsn=[stream.lsns[k]])[1])
        except DecodeError as error:
            return states, error
    return states, None


def part(stream: Stream, begin: int, end: int, survey: RangeSurvey | None = None) -> Summary:
    summarizer = Summarizer(survey=survey)
    edges = sorted({begin, end} | {s for s in stream.sessions if begin < s < end})
    for x, y in itertools.pairwise(edges):
        if x in stream.sessions:
            summarizer.start_session()
        summarizer.add(array(stream.payloads[x:y]), pa.array(stream.lsns[x:y], pa.int64()))
    return summarizer.summary()


def values(state: StreamState) -> Any:
    """What the state says; None and that of an empty stream are one."""
    return state.values or tag([], state)[1].values


def outcome(summary: Summary, state: StreamState) -> Any:
    try:
        return values(summary.apply(state))
    except DecodeError as error:
        return str(error)


def without_place(error: DecodeError) -> str:
    """What an error says of the relation and the column, without the message, its LSN and the byte."""
    return re.sub(r"^message \d+, (LSN [0-9A-F/]+, )?|, byte \d+", "", str(error))


def check_range(
    stream: Stream, states: list[StreamState], error: DecodeError | None, i: int, j: int, first: int = 0
) -> None:
    """Of the messages from i to j; `states` are those before message `first` and all behind it."""
    summary = part(stream, i, j)
    assert Summary.from_bytes(summary.to_bytes()) == summary
    last = len(states) - 1 + first
    if error is None or j <= last:
        assert values(summary.apply(states[i - first])) == values(states[j - first])
    elif (stream.payloads[last][:1] or b"?") in CONTROLS or not stream.payloads[last]:
        with pytest.raises(DecodeError) as caught:
            summary.apply(states[i - first])
        # Of Relation messages that are alike the last is kept, and blamed.
        blamed, wanted = caught.value.seq, error.seq
        assert blamed is not None
        assert wanted is not None
        # One of them may have an xid, between its tag and its body.
        alike = sorted((stream.payloads[last + blamed - wanted], stream.payloads[last]), key=len)
        assert len(alike[1]) - len(alike[0]) in (0, 4)
        assert alike[1].endswith(alike[0][1:])
        assert blamed != wanted or str(caught.value) == str(error)
        assert without_place(caught.value) == without_place(error)


def check_survey(stream: Stream, state: StreamState, i: int, j: int) -> None:
    """A survey of the messages from i to j says what tagging them from the state before says."""
    survey, wanted = RangeSurvey(commits=True), []
    part(stream, i, j, survey)
    stored = RangeSurvey.from_bytes(survey.to_bytes())
    messages, committed = stored.tagged_after(state)
    found = surveyed(messages)
    after = state
    for begin, end in itertools.pairwise(sorted({i, j} | {s for s in stream.sessions if i < s < j})):
        before = marked(after) if begin in stream.sessions else after
        tagged, after = tag(stream.payloads[begin:end], before, lsn=stream.lsns[begin:end])
        wanted.append(tagged)
    expected = surveyed(wanted)
    assert stored.relations_after(state) == expected.relations
    assert described(found) == described(expected)
    both = TransactionOutcomes.joined([found.outcomes, committed])
    assert listed_outcomes(both) == listed_outcomes(expected.outcomes)


def surveyed(batches: Iterable[pa.RecordBatch]) -> Survey:
    surveyor = Surveyor(outcomes=True)
    for batch in batches:
        surveyor.add(batch)
    return surveyor.survey()


@pytest.mark.parametrize("year", [-200_000, 200_000])
def test_a_survey_with_a_time_that_python_does_not_have(year: int) -> None:
    time = year * 31_556_952 * 10**6
    payloads = [
        encode.encode_begin(100, time, 7),
        encode.encode_relation(T),
        encode.encode_insert(16384, ["1"]),
        encode.encode_commit(100, 108, time),
    ]
    check_survey(Stream(payloads, [0] * 4, set()), StreamState(), 0, 4)


def test_a_survey_of_a_damaged_stream_is_small() -> None:
    """Even if each change names another relation."""
    count = 50_000
    payloads = array([b"I" + k.to_bytes(4, "big") + b"N\0\0" for k in range(count)])
    survey = RangeSurvey(commits=True)
    tracemalloc.start()
    Summarizer(survey=survey).add(payloads)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 16 * count
    assert sorted(survey.relations[0]) == list(range(count))


def described(survey: Survey) -> set[Any]:
    """The Relation messages, with the types known before them."""
    types: dict[bytes, bytes] = {}
    found = set()
    for row in sorted(survey.descriptions, key=lambda row: int(row["seq"])):
        if row["kind"] == ord("Y"):
            types[row["body"][:4]] = row["body"]
        found.add((row["body"], frozenset(types.items())))
    return found


def check_law(stream: Stream, states: list[StreamState], i: int, cuts: list[int]) -> None:
    """Three ranges: the order of composition does not matter, and ranges are as good as the whole."""
    a, b, c = (part(stream, x, y) for x, y in itertools.pairwise([i, *cuts]))
    left, right, whole = compose(compose(a, b), c), compose(a, compose(b, c)), part(stream, i, cuts[-1])
    if whole.failed:
        # Which of the messages before an error are kept is nobody's business.
        assert left.failed
        assert right.failed
        for state in states:
            assert outcome(left, state) == outcome(right, state) == outcome(whole, state)
    else:
        assert left == right == whole == compose(a, b, c)
    assert compose(Summary(), a) == a == compose(a, Summary())


def check_all(stream: Stream, seed: int, every: int = 1, laws: int = 20) -> None:
    states, error = states_of(stream)
    count = len(stream.payloads)
    chance = random.Random(seed)
    for i in range(len(states)):
        check_range(stream, states, error, 0, i)
        check_range(stream, states, error, i, count)
        for j in range(i, count + 1):
            if every == 1 or chance.randrange(every) == 0:
                check_range(stream, states, error, i, j)
    for _ in range(laws):
        i, *cuts = sorted(chance.randrange(count + 1) for _ in range(4))
        check_law(stream, states, i, cuts)
        i, j = sorted(chance.randrange(len(states)) for _ in range(2))
        check_survey(stream, states[i], i, j)


@pytest.mark.parametrize("seed", and_exhaustive(and_slow(range(3), range(3, 10)), range(10, 40)))
def test_every_range_of_random_streams(seed: int) -> None:
    check_all(make_stream(RandomChoices(seed), 10), seed, every=1 if seed < 8 else 8)


@pytest.mark.parametrize("seed", and_exhaustive(and_slow(range(8), range(8, 20)), range(20, 60)))
def test_ranges_of_damaged_streams(seed: int) -> None:
    choices = RandomChoices(seed)
    check_all(damage(choices, make_stream(choices, 8), 1 + seed % 3), seed, every=8)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.one_of(streams(), damaged_streams()), st.integers(0, 10**6))
def test_ranges_of_streams_that_hypothesis_makes(stream: Stream, seed: int) -> None:
    check_all(stream, seed, every=20)


@pytest.mark.slow
def test_every_range_of_a_stream_with_everything() -> None:
    check_all(everything(), 1, laws=200)


@pytest.mark.parametrize(
    "path", and_slow(FILES[2::3], [*FILES[::3], *FILES[1::3]]), ids=lambda path: path.stem
)
def test_every_cut_of_what_servers_sent(path: Path) -> None:
    payloads = read(path)
    check_all(Stream([data for _, data in payloads], [lsn for lsn, _ in payloads], set()), 1, every=100)


class Churn:
    """Streams of few xids, which begin again and again; logical messages whose LSNs go up and down; sessions."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.out: list[bytes] = []
        self.sessions: set[int] = set()
        self.streamed: set[int] = set()
        self.prepared: dict[int, tuple[str, int]] = {}

    def below(self, n: int) -> int:
        return self.chance.randrange(n)

    def message(self, xid: int | None = None) -> None:
        if self.below(3):
            made = encode.encode_message(
                self.below(40), "p", b"x" * self.below(9), transactional=False, xid=xid
            )
            if self.below(20) == 0:
                at = 2 if xid is None else 6
                made = made[:at] + b"\x80" + made[at + 1 :]  # beyond int64
            self.out.append(made)

    def inside(self, xids: list[int | None]) -> None:
        if self.below(6) == 0:
            self.out.append(encode.encode_origin(7, "o"))
        for _ in range(self.below(4)):
            xid = self.chance.choice(xids)
            roll = self.below(6)
            if roll == 0:
                self.out.append(encode.encode_type(20001, "public", self.chance.choice("xy"), xid=xid))
            elif roll < 3:
                self.out.append(encode.encode_relation(self.chance.choice([T, WIDER]), xid=xid))
            else:
                self.message(xid)

    def end(self) -> None:
        lsn, xid = self.below(100), self.chance.choice([*self.streamed, *self.prepared, 1])
        if xid in self.prepared:
            gid, end = self.prepared[xid]
            if self.below(2):
                self.out.append(encode.encode_commit_prepared(lsn, lsn, 0, xid, gid))
            else:
                self.out.append(encode.encode_rollback_prepared(end, lsn, 0, 0, xid, gid))
            del self.prepared[xid]
        elif xid in self.streamed or self.below(20) == 0:
            roll = self.below(4)
            if roll == 0:
                self.out.append(encode.encode_stream_abort(xid, 10 + xid))
                return
            if roll == 1:
                self.out.append(encode.encode_stream_abort(xid, xid))
            elif roll == 2:
                self.out.append(encode.encode_stream_commit(xid, lsn, lsn, 0))
            else:
                self.out.append(encode.encode_stream_prepare(lsn, lsn + 1, 0, xid, "g"))
                self.prepared[xid] = ("g", lsn + 1)
            self.streamed.discard(xid)

    def step(self) -> None:
        xid, roll, lsn = 1 + self.below(3), self.below(20), self.below(100)
        if roll < 4:
            self.message()
        elif roll < 9:
            first = xid not in self.streamed or self.below(4) == 0
            self.begin(xid) if first else None
            self.streamed.add(xid)
            self.out.append(encode.encode_stream_start(xid, first))
            self.inside([xid, 10 + xid])
            self.out.append(encode.encode_stream_stop())
        elif roll < 11:
            self.begin(xid)
            self.out.append(encode.encode_begin(lsn, 0, xid))
            self.inside([None])
            if self.below(8) or not self.start_session():
                self.out.append(encode.encode_commit(lsn, lsn, 0))
        elif roll < 13:
            self.begin(xid)
            self.out.append(encode.encode_begin_prepare(lsn, lsn + 1, 0, xid, "g"))
            self.inside([None])
            self.out.append(encode.encode_prepare(lsn, lsn + 1, 0, xid, "g"))
            self.prepared[xid] = ("g", lsn + 1)
        elif roll < 19:
            self.end()
        elif self.below(2):
            self.start_session()

    def begin(self, xid: int) -> None:
        self.streamed.discard(xid)
        self.prepared.pop(xid, None)

    def start_session(self) -> bool:
        self.sessions.add(len(self.out))
        self.streamed.clear()
        return True

    def make(self, steps: int) -> Stream:
        for _ in range(steps):
            self.step()
        sessions = {s for s in self.sessions if s < len(self.out)}
        return Stream(self.out, [k % 3 * (1000 + k) for k in range(len(self.out))], sessions)


@pytest.mark.parametrize("seed", and_exhaustive(and_slow(range(4), range(4, 20)), range(20, 50)))
def test_every_range_of_streams_of_few_xids(seed: int) -> None:
    check_all(Churn(seed).make(14), seed, every=1 if seed < 20 else 6, laws=60)


def test_streams_of_few_xids_are_what_they_should_be() -> None:
    """Long enough, with logical messages that come again, voided streams and sessions in the midst of things."""
    ends, repeated, sessions = 0, 0, 0
    for seed in range(60):
        stream = Churn(seed).make(14)
        states, error = states_of(stream)
        ends += error is None
        # Some logical message comes again.
        for payload, before in zip(stream.payloads, map(values, states), strict=False):
            at = 6 if before["context"] == "streaming" else 2
            lsn = int.from_bytes(payload[at : at + 8], "big")
            repeated += payload[:1] == b"M" and lsn in itertools.accumulate(before["message_lsns"])
        sessions += any(0 < s < len(states) for s in stream.sessions)
    assert ends > 40
    assert repeated > 10
    assert sessions > 10


@pytest.mark.parametrize("seed", and_exhaustive(and_slow([*range(6), 1091], range(6, 15)), range(15, 40)))
def test_ranges_behind_a_damaged_one(seed: int) -> None:
    """Decoders in quarantine go on from states that tagging alone never reaches: doubtful streams among them."""
    choices = RandomChoices(seed)
    stream = Churn(seed).make(14) if seed % 2 else make_stream(choices, 10)
    chance, checked, doubtful = random.Random(seed), 0, False
    for _ in range(6):
        at = chance.randrange(1, len(stream.payloads)) if len(stream.payloads) > 1 else 0
        head = damage(choices, Stream(stream.payloads[:at], stream.lsns[:at], set()), 2)
        decoder = Decoder(Options(on_error="quarantine"))
        decoder.decode(head.payloads, lsn=head.lsns)
        state = decoder.state
        states, error = states_of(stream, state, at)
        if (values(state)["lost"] or values(state)["bad_type"]) and at not in stream.sessions:
            if at < len(stream.payloads):
                with pytest.raises(ValueError, match="could not be read"):
                    part(stream, at, len(stream.payloads)).apply(state)
            continue
        doubtful = doubtful or any(each["doubtful"] for each in values(state)["streamed"])
        for j in range(at, len(stream.payloads) + 1):
            check_range(stream, states, error, at, j, first=at)
            checked += 1
    assert checked or seed not in (0, 1, 2, 3)


def test_a_doubtful_stream_stays_doubtful() -> None:
    decoder = Decoder(Options(on_error="quarantine"))
    decoder.decode([*streamed(5, insert(5)), b"A\0", *plain(9)])
    rest = [*plain(10), *streamed(5, first=False), encode.encode_stream_prepare(1, 2, 0, 5, "g"), *plain(11)]
    after = values(summarize(array(rest)).apply(decoder.state))
    assert [each["doubtful"] for each in after["prepared"]] == [True]
    assert after == values(tag(rest, decoder.state)[1])


@pytest.mark.parametrize("seed", and_exhaustive(and_slow(range(4), range(4, 10)), range(10, 30)))
def test_ranges_are_tagged_apart(seed: int) -> None:
    """Any number of cuts; some ranges are empty. No range but the first is ever applied to a whole prefix."""
    stream = Churn(seed).make(20) if seed % 2 else make_stream(RandomChoices(seed), 14)
    until = min([*stream.sessions, len(stream.payloads)])
    try:
        expected, _ = tag(stream.payloads[:until], lsn=stream.lsns[:until])
    except DecodeError:
        return
    chance = random.Random(seed)
    cuts = sorted(chance.randrange(until + 1) for _ in range(8))
    state, rows = StreamState(), []
    for x, y in itertools.pairwise([0, *cuts, until]):
        got, _ = tag(stream.payloads[x:y], StreamState.from_json(state.to_json()), lsn=stream.lsns[x:y])
        rows += got.to_pylist()
        state = Summary.from_bytes(part(stream, x, y).to_bytes()).apply(state)
    assert rows == expected.to_pylist()


def test_batches_may_end_anywhere() -> None:
    for seed in range(40):
        stream = Churn(seed).make(12) if seed % 2 else make_stream(RandomChoices(seed), 12)
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


def logical(lsn: int) -> bytes:
    return encode.encode_message(lsn, "p", b"x" * 100, transactional=False)


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
        payloads += [logical(3)]
    return payloads


def test_the_size_is_that_of_what_is_open_and_not_of_what_is_over() -> None:
    few, lots = summarize(array(many(2))), summarize(array(many(2000)))
    for summary in (few, lots):
        assert [chr(m.payload[0]) for m in summary.transactions] == ["S", "E"]
        assert [chr(m.payload[0]) for m in summary.descriptions] == ["R"]
    assert len(lots.to_bytes()) < len(few.to_bytes()) + 400  # some more ranges of xids


def test_xids_that_begin_one_after_the_other_are_few_bytes() -> None:
    payloads = [message for xid in range(1000, 21000) for message in plain(xid, insert())]
    summary = summarize(array(payloads))
    assert summary.begun_xids == ((1001, 21000),)  # the first is there as it came
    assert len(summary.to_bytes()) < 400


MOST = 1024  # LSNs of logical messages that a state keeps


def test_logical_messages_cost_an_lsn_each_until_there_are_many() -> None:
    heartbeats = [m for n in range(3000) for m in [*plain(10 + n), *plain(4000 + n), logical(500 + 7 * n)]]
    summary = summarize(array(heartbeats))
    assert summary.lsns == tuple(range(500 + 7 * (2999 - MOST), 500 + 7 * 3000, 7))
    assert len(summary.to_bytes()) < 400
    chance = random.Random(1)
    for count in (10_000, 100_000):
        apart = summarize(array([*plain(5), *(logical(chance.randrange(2**32)) for _ in range(count))]))
        assert len(apart.lsns) == MOST + 1
        assert len(apart.to_bytes()) < 8 * MOST


@pytest.mark.parametrize("seed", and_slow(range(2), range(2, 12)))
def test_logical_messages_of_ranges_are_those_of_the_whole(seed: int) -> None:
    """Their LSNs come in any order, many of them twice, and more than a state keeps."""
    chance = random.Random(seed)
    top = 2 ** chance.choice([11, 12, 20, 62])
    payloads: list[bytes] = []
    while len(payloads) < 6000:
        xid = 5 if chance.randrange(2) else None
        here = [
            encode.encode_message(chance.randrange(top), "p", b"x" * 9, transactional=False, xid=xid)
            for _ in range(chance.randrange(600))
        ]
        payloads += here if xid is None else streamed(5, *here)
    edges = sorted(chance.randrange(len(payloads)) for _ in range(6))
    pieces = [array(payloads[x:y]) for x, y in itertools.pairwise([0, *edges, len(payloads)])]
    summaries = [Summary.from_bytes(summarize(piece).to_bytes()) for piece in pieces]
    states = [StreamState()]
    for piece, summary in zip(pieces, summaries, strict=True):
        states.append(tag(piece, states[-1])[1])
        assert values(summary.apply(states[-2])) == values(states[-1])
    assert values(states[-1])["message_floor"] > 0
    for i, j, k in itertools.combinations(range(len(states)), 3):
        left, right = compose(*summaries[i:j]), compose(*summaries[j:k])
        assert compose(left, right) == compose(*summaries[i:k])
        assert values(compose(left, right).apply(states[i])) == values(states[k])


def test_a_logical_message_that_was_set_aside_comes_in_a_later_range() -> None:
    decoder = Decoder(Options(on_error="quarantine"))
    decoder.decode([logical(10), logical(20)[:-1], logical(30)])
    again = [*plain(5), logical(10), logical(20), logical(30), logical(40)]
    tagged, state = tag(again, decoder.state)
    assert tagged.column("seq").to_pylist() == [3, 4, 6, 8]
    assert summarize(array(again)).apply(decoder.state) == state


@pytest.mark.parametrize(
    "rest",
    and_slow(
        [
            [*plain(5), encode.encode_stream_commit(5, 1, 2, 0)],
            [encode.encode_stream_abort(5, 6), *plain(5), *streamed(5), *streamed(5, first=False)],
            [*streamed(6), encode.encode_stream_prepare(1, 2, 0, 6, "g"), *plain(6), *plain(5)],
            [logical(30), *streamed(5), logical(40), *streamed(5), logical(50), *plain(6), logical(20)],
        ],
        [
            [*streamed(5, encode.encode_relation(T, xid=5)), *plain(5), *plain(6)],
            [logical(30), encode.encode_stream_abort(5, 5), logical(40), *plain(5), logical(50)],
            [logical(30), encode.encode_stream_abort(5, 6), logical(40), *plain(5), logical(50), *plain(5)],
            [*plain(5), *streamed(5, first=False)],
            [*streamed(5, first=False), *plain(5), encode.encode_stream_commit(5, 1, 2, 0)],
        ],
    ),
)
def test_an_xid_that_begins_again(rest: list[bytes]) -> None:
    """What was open under it is void, whether it was opened here or before."""
    before = [*streamed(5, encode.encode_relation(T, xid=5), insert(5)), logical(10), *plain(9)]
    stream = Stream([*before, *rest, *plain(10)], [0] * (len(before) + len(rest) + 2), set())
    check_all(stream, 1)
    states, error = states_of(stream)
    every = list(itertools.combinations(range(len(stream.payloads) + 1), 4))
    for i, *cuts in random.Random(5).sample(every, 300):
        check_law(stream, states, i, cuts)
    assert (error is None) == (len(states) > len(stream.payloads))


def test_logical_messages_before_it_is_known_what_is_open() -> None:
    """Inside of a stream block they bear an xid, and the same bytes say something else."""
    bytes_of_both = encode.encode_message(5, "", b"\0" * 5, transactional=False)
    assert summarize(array([bytes_of_both])).lsns_before == ((5,), (5 << 32,))
    inside, _ = states_of(Stream([encode.encode_stream_start(5, True)], [0], set()))
    outside = StreamState()
    for state, lsn in ((outside, 5), (inside[-1], 5 << 32)):
        for cut in range(2):
            summary = compose(
                *(summarize(array(some)) for some in ([bytes_of_both][:cut], [bytes_of_both][cut:]))
            )
            assert values(summary.apply(state))["message_lsns"] == [lsn]


def test_garbage_does_not_travel() -> None:
    """Of payloads that are none no more is kept than the error needs."""
    payloads = [("\\x" + "00" * 5000).encode()] * 1000
    summary = summarize(array(payloads))
    assert len(summary.to_bytes()) < 400
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
