"""A stream cut at every message and continued in another process gives the same as the whole stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import DecodeError, Decoder, Options, encode
from pgoutput_fast.transactions import reorder_buffer as reorder_buffer
from pgoutput_fast.transactions import view as transactions
from support.forms import and_exhaustive, and_slow
from support.interleaved import STOP, T, everything, insert, plain, relation, start
from support.resuming import WAYS, Given, OtherProcess, go_on_in_a_new_process, options_of, saved
from support.streams import ENRICHED, RandomChoices, Stream, by_reference, make_stream

# Both ways to write a state, and what waits in memory and in files.
SHORT = [("json", "memory"), ("pickle", "files")]


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    with OtherProcess() as process:
        yield process


def cut_everywhere(stream: Stream, how: str, options: Options, go_on: Any, every: int = 1) -> None:
    expected = by_reference(stream, transactions="committed")
    assert expected is not None
    given, decoder = Given(), Decoder(options, catalog=ENRICHED)
    for k in range(len(stream.payloads) + 1):
        rest = {each - k for each in stream.sessions if each >= k}
        if k % every == 0:
            data = saved(decoder.state, how)
            then = go_on(data, how, options, stream.payloads[k:], stream.lsns[k:], rest)
            whole = given.and_then(then)
            for part, value in expected.items():
                assert whole[part] == value, (k, part)
        if k < len(stream.payloads):
            if k in stream.sessions:
                decoder.start_session()
            given.add(decoder.decode(stream.payloads[k : k + 1], lsn=stream.lsns[k : k + 1]))


@pytest.mark.parametrize(("how", "where"), and_slow(SHORT, [way for way in WAYS if way not in SHORT]))
def test_cut_at_every_message(other: OtherProcess, tmp_path: Path, how: str, where: str) -> None:
    stream = everything()
    cut_everywhere(stream, how, options_of(where, tmp_path), other.go_on)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "where"), and_exhaustive(WAYS[-2:], WAYS[-3:-2]))
def test_cut_random_streams_at_every_message(
    other: OtherProcess, tmp_path: Path, how: str, where: str
) -> None:
    for seed in range(40, 48):
        cut_everywhere(make_stream(RandomChoices(seed), 10), how, options_of(where, tmp_path), other.go_on)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "where"), and_exhaustive(WAYS[-1:], WAYS[-2:-1]))
def test_cut_and_gone_on_in_a_new_process(tmp_path: Path, how: str, where: str) -> None:
    cut_everywhere(everything(), how, options_of(where, tmp_path), go_on_in_a_new_process, every=9)


@pytest.mark.parametrize(("how", "where"), WAYS)
def test_cut_between_the_pieces_of_a_large_transaction(
    other: OtherProcess, tmp_path: Path, how: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state says how far it has come, and the other process gives the rest before anything else."""
    monkeypatch.setattr(transactions, "_PIECE_ROWS", 3)
    monkeypatch.setattr(reorder_buffer, "_SMALL_ROWS", 1)
    options = options_of(where, tmp_path)
    blocks = [
        [start(9, k == 0), relation(T, 9), *[insert(10 * k + n, xid=9 + n % 2) for n in range(5)], STOP]
        for k in range(4)
    ]
    end = [encode.encode_stream_abort(9, 10), encode.encode_stream_commit(9, 300, 308, 0)]
    behind = plain(400, relation(T), insert(99))
    expected = by_reference(
        Stream([*itertools.chain(*blocks), *end, *behind], [], set()), transactions="committed"
    )
    assert expected is not None
    given, decoder, pieces = Given(), Decoder(options), 0
    for out in decoder.stream([*blocks, end]):
        given.add(out)
        pieces += 1
        state = decoder.state
        if state.next_seq < 4 * 8 + 2:
            continue
        assert sum(each.batch.num_rows for each in out.changes) <= 6
        data = saved(state, how)
        whole = given.and_then(other.go_on(data, how, options, behind, [], set()))
        for part, value in expected.items():
            assert whole[part] == value, (pieces, part)
    assert pieces > 4 + 3


def test_a_release_that_was_left_goes_on_with_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_PIECE_ROWS", 2)
    monkeypatch.setattr(reorder_buffer, "_SMALL_ROWS", 1)
    decoder = Decoder(Options(transactions="committed"))
    for k in range(5):
        decoder.decode([start(9, k == 0), relation(T, 9), insert(k, xid=9), STOP])
    pieces = decoder.stream([[encode.encode_stream_commit(9, 300, 308, 0)]])
    assert next(pieces).outcomes.num_rows == 1
    first = [k for each in next(pieces).changes for k in each.batch.column("id").to_pylist()]
    pieces.close()
    out = decoder.decode(plain(400, relation(T), insert(99)))
    assert first + out.table("public.t").column("id").to_pylist() == [0, 1, 2, 3, 4, 99]
    assert decoder.state.reorder_buffer is None


def test_a_bad_change_stops_a_release_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_PIECE_ROWS", 1)
    monkeypatch.setattr(reorder_buffer, "_SMALL_ROWS", 1)
    decoder = Decoder(Options(transactions="committed"))
    bad = encode.encode_insert(16384, ["x"], xid=9)
    for k, row in enumerate([insert(0, xid=9), insert(1, xid=9), bad]):
        decoder.decode([start(9, k == 0), relation(T, 9), row, STOP])
    pieces = decoder.stream([[encode.encode_stream_commit(9, 300, 308, 0)]])
    assert [sum(each.batch.num_rows for each in next(pieces).changes) for _ in range(3)] == [0, 1, 1]
    before = decoder.state
    for attempt in (lambda: next(pieces), lambda: decoder.decode([])):
        with pytest.raises(DecodeError) as caught:
            attempt()
        assert (caught.value.seq, caught.value.column) == (10, "id")
        assert decoder.state == before


def test_an_end_of_a_stream_that_the_state_does_not_know() -> None:
    """The state was lost, and a new decoder is given what comes next."""
    known = Decoder(Options(transactions="committed"))
    known.decode([start(9, True), relation(T, 9), insert(1, xid=9), STOP])
    for rest in (
        [encode.encode_stream_commit(9, 300, 308, 0)],
        [encode.encode_stream_prepare(1, 2, 0, 9, "g")],
        [start(9), insert(2, xid=9), STOP],
    ):
        fresh = Decoder(Options(transactions="committed"))
        with pytest.raises(DecodeError, match="the Stream Start that begins this transaction"):
            fresh.decode(rest)
        assert fresh.state.next_seq == 0
        Decoder(Options(transactions="committed"), known.state).decode(rest)
