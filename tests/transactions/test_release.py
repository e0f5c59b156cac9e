"""The rule by which rows are released: rows wait until their transaction ends, and come in the order of the commits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest

from pgoutput_fast.transactions.outcomes import NO_OUTCOMES, TransactionOutcomes
from pgoutput_fast.transactions.release import Piece, Releaser
from pgoutput_fast.transactions.reorder_buffer import Due, ReorderBuffer
from pgoutput_fast.transactions.spill import Spiller
from support.tagged_rows import seqs, tagged

Row = tuple[str, int, int | None, int | None]
End = tuple[int, int, str]  # (at_seq, txn, what became of it)
Abort = tuple[int, int, int]  # (txn, subxid, at_seq)

MANY = 1 << 30


@pytest.fixture
def spiller() -> Iterator[Spiller]:
    one = Spiller(None)
    yield one
    one.close(True)


def make_outcomes(*ends: End, aborts: tuple[Abort, ...] = ()) -> TransactionOutcomes:
    """What became of transactions: of lost ones, or of others."""
    outcomes = [
        {"txn": txn, "subxid": None, "outcome": what, "at_seq": at_seq, "commit_lsn": 1000 + at_seq}
        for at_seq, txn, what in ends
        if what != "lost"
    ]
    outcomes += [
        {"txn": txn, "subxid": subxid, "outcome": "aborted", "at_seq": at_seq}
        for txn, subxid, at_seq in aborts
    ]
    fields = [("txn", pa.int64()), ("subxid", pa.int64()), ("outcome", pa.string()), ("at_seq", pa.int64())]
    fields += [("commit_lsn", pa.int64()), ("commit_timestamp", pa.timestamp("us"))]
    known = TransactionOutcomes.of_batch(pa.RecordBatch.from_pylist(outcomes, pa.schema(fields)))
    lost = TransactionOutcomes.of_due(
        [Due(txn, at_seq, 0, 0, lost=True) for at_seq, txn, what in ends if what == "lost"]
    )
    return lost if len(lost.txns) else known


def given(releaser: Releaser, buffer: ReorderBuffer, piece: Piece | None) -> list[int]:
    """Ordinals of what a call releases: at once, and what is due behind it."""
    found = [] if piece is None else seqs(piece.committed())
    while buffer.due:
        found += seqs(releaser.take_due().committed())
    return found


def test_rows_wait_for_the_end_of_their_transaction(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, MANY, 100, MANY)
    assert one.take(tagged(("I", 1, 0, 9), ("I", 2, 4, 9), ("I", 3, 0, 9)), NO_OUTCOMES) is None
    assert sorted(buffer.waiting) == [0, 4]
    piece = one.take(tagged(("I", 5, 0, 9), ("I", 6, 7, 9)), make_outcomes((8, 0, "committed")))
    assert piece is not None
    assert seqs(piece.committed()) == [1, 3, 5]
    assert piece.committed().column("commit_lsn").to_pylist() == [1008] * 3
    assert piece.lost() is None
    assert sorted(buffer.waiting) == [4, 7]


def test_rows_of_no_transaction_come_at_once_and_in_their_place(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, MANY, 100, MANY)
    arrived = tagged(("I", 1, 0, 9), ("M", 2, None, None), ("I", 3, 1, 9), ("M", 5, None, None))
    piece = one.take(arrived, make_outcomes((4, 0, "committed")))
    assert given(one, buffer, piece) == [2, 1, 5]


def test_rows_of_a_transaction_that_was_rolled_back_go(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, MANY, 100, MANY)
    one.take(tagged(("I", 1, 0, 9), ("I", 2, 1, 9)), NO_OUTCOMES)
    piece = one.take(tagged(("I", 3, 0, 9)), make_outcomes((4, 0, "aborted")))
    assert given(one, buffer, piece) == []
    assert list(buffer.waiting) == [1]


def test_what_a_subtransaction_rolled_back_goes_wherever_it_waited(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, MANY, 100, MANY)
    one.take(tagged(("I", 1, 0, 9), ("I", 2, 0, 10), ("I", 3, 0, 11)), NO_OUTCOMES)
    one.take(tagged(("I", 4, 0, 10)), make_outcomes(aborts=((0, 10, 5),)))
    piece = one.take(
        tagged(("I", 6, 0, 10), ("I", 7, 0, 11)), make_outcomes((9, 0, "committed"), aborts=((0, 11, 8),))
    )
    assert given(one, buffer, piece) == [1, 6]


def test_rows_of_lost_transactions_are_apart(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, MANY, 100, MANY)
    one.take(tagged(("I", 1, 0, 9), ("I", 2, 1, 9)), NO_OUTCOMES)
    piece = one.take(tagged(("I", 3, 0, 9)), make_outcomes((4, 0, "lost")))
    assert piece is not None
    lost = piece.lost()
    assert lost is not None
    assert seqs(lost) == [1, 3]
    assert seqs(piece.committed()) == []


def test_what_is_too_much_for_a_piece_is_given_bit_by_bit(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, MANY, 1, MANY)
    for seq in range(1, 5):
        one.take(tagged(("I", seq, 0, 9)), NO_OUTCOMES)
    assert not one.fits([0])
    assert one.fits([1])
    piece = one.take(
        tagged(("I", 5, 1, 9), ("M", 6, None, None), ("I", 8, 0, 9)),
        make_outcomes((7, 1, "committed"), (9, 0, "committed")),
    )
    assert piece is not None
    assert seqs(piece.committed()) == [6]
    assert [due.txn for due in buffer.due] == [1, 0]
    bits = []
    while buffer.due:
        bits.append(seqs(one.take_due().committed()))
    assert bits == [[5], [1, 2, 3, 4, 8]]


def test_a_part_of_a_stream_gives_what_commits_in_it_and_keeps_what_is_open(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, MANY, 2, MANY)
    first = tagged(
        ("I", 1, 0, 9), ("I", 2, 1, 9), ("I", 3, 0, 9), ("I", 4, 0, 9), ("I", 5, 2, 9), ("I", 6, 3, 9)
    )
    assert list(one.committed(first, NO_OUTCOMES)) == []
    one.keep_open(first, NO_OUTCOMES, [0, 1, 2])
    assert sorted(buffer.waiting) == [0, 1, 2]
    then = tagged(("I", 7, 1, 9), ("I", 9, 0, 9), ("I", 11, 5, 9), ("I", 12, 6, 9))
    ended = make_outcomes((8, 1, "committed"), (10, 0, "committed"), (13, 5, "committed"))
    assert [seqs(piece) for piece in one.committed(then, ended)] == [
        [2, 7],
        [1, 3, 4],
        [9],
        [11],
    ]
    one.keep_open(then, ended, [6])
    assert list(buffer.waiting) == [6], "2 is open no more: it was rolled back, or is void"


def test_large_transactions_come_in_the_order_of_their_commits(spiller: Spiller) -> None:
    one = Releaser(ReorderBuffer(), spiller, MANY, 1, MANY)
    first = tagged(("I", 1, 0, 9), ("I", 2, 1, 9), ("I", 3, 0, 9), ("I", 4, 1, 9))
    one.keep_open(first, NO_OUTCOMES, [0, 1])
    ended = make_outcomes((5, 1, "committed"), (6, 0, "committed"))
    # What is given bit by bit comes as it waits, what comes at once is cut to the size of a piece.
    assert [seqs(piece) for piece in one.committed(tagged(), ended)] == [[2, 4], [1, 3]]


def test_too_many_rows_in_memory_go_to_files(spiller: Spiller) -> None:
    buffer = ReorderBuffer()
    one = Releaser(buffer, spiller, 1, 100, MANY)
    first = tagged(("I", 1, 0, 9), ("I", 2, 0, 9))
    one.keep_open(first, NO_OUTCOMES, [0])
    assert (buffer.memory, len(buffer.files)) == (0, 1)
    assert [seqs(piece) for piece in one.committed(tagged(), make_outcomes((3, 0, "committed")))] == [[1, 2]]


# ---- both ways in, and a plain one -------------------------------------------------------------------------------


def _stream(chance: random.Random) -> tuple[list[Row], list[End], list[Abort]]:
    """A stream of interleaved transactions: rows, ends and aborts, of which each has an ordinal of its own."""
    rows: list[Row] = []
    ends: list[End] = []
    aborts: list[Abort] = []
    running: list[int] = []
    for seq in range(chance.randrange(80)):
        what = chance.random()
        if what < 0.15 or not running:
            running.append(seq)
        elif what < 0.7:
            rows.append(("I", seq, chance.choice(running), chance.randrange(3)))
        elif what < 0.8:
            aborts.append((chance.choice(running), chance.randrange(1, 3), seq))
        else:
            txn = running.pop(chance.randrange(len(running)))
            ends.append((seq, txn, chance.choice(["committed", "committed", "aborted"])))
    return rows, ends, aborts


def _plainly(rows: list[Row], ends: list[End], aborts: list[Abort]) -> list[int]:
    found = []
    for _, txn, what in sorted(ends):
        if what == "committed":
            for _, seq, of, subxid in rows:
                if of == txn and not any((of, subxid) == (t, s) and seq < at for t, s, at in aborts):
                    found.append(seq)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_however_a_stream_is_cut_the_same_rows_come_in_the_same_order(seed: int, spiller: Spiller) -> None:
    chance = random.Random(seed)
    rows, ends, aborts = _stream(chance)
    cuts = sorted({0, 100, *(chance.randrange(80) for _ in range(chance.randrange(6)))})
    sizes = chance.choice([1, 3, 100]), chance.choice([1, MANY])
    limit = chance.choice([1, MANY])
    buffer, others = ReorderBuffer(), ReorderBuffer()
    one, other = Releaser(buffer, spiller, limit, *sizes), Releaser(others, spiller, limit, *sizes)
    taken: list[int] = []
    given_seqs: list[int] = []
    for begin, end in pairwise(cuts):
        arrived = tagged(*(row for row in rows if begin <= row[1] < end))
        became = make_outcomes(
            *(each for each in ends if begin <= each[0] < end),
            aborts=tuple(each for each in aborts if begin <= each[2] < end),
        )
        taken += given(one, buffer, one.take(arrived, became))
        one.spill()
        given_seqs += [seq for piece in other.committed(arrived, became) for seq in seqs(piece)]
        other.keep_open(
            arrived, became, sorted({row[2] or 0 for row in rows} - {e[1] for e in ends if e[0] < end})
        )
    expected = _plainly(rows, ends, aborts)
    assert taken == expected
    assert given_seqs == expected
