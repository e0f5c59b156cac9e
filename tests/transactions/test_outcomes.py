"""What became of transactions, applied to tagged rows."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from pgoutput_fast import encode, tag
from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA
from pgoutput_fast.transactions.outcomes import (
    NO_OUTCOMES,
    TransactionOutcomes,
    by_transaction,
    committed_rows,
    values_of,
    without_rolled_back,
)
from pgoutput_fast.transactions.reorder_buffer import Due
from support.tagged_rows import seqs, tagged


def test_rows_of_a_subtransaction_go_up_to_its_abort() -> None:
    rows = tagged(
        ("I", 1, 0, 10), ("I", 2, 0, 11), ("M", 3, 0, 10), ("I", 4, 5, 10), ("I", 5, 0, 10), ("I", 6, None, None),
        ("I", 7, 0, None), ("I", 8, 0, 10),
    )  # fmt: skip
    assert seqs(without_rolled_back(rows, [(0, 10, 5)])) == [2, 3, 4, 5, 6, 7, 8]
    assert seqs(without_rolled_back(rows, [(0, 10, 5), (0, 10, 9), (0, 11, 2)])) == [2, 3, 4, 6, 7]
    assert seqs(without_rolled_back(rows, [(5, 10, 9), (77, 10, 9)])) == [1, 2, 3, 5, 6, 7, 8]
    largest = tagged(("I", 1, 0, 0xFFFFFFFF), ("I", 2, 0, 0))
    assert seqs(without_rolled_back(largest, [(0, 0xFFFFFFFF, 9)])) == [2]
    assert without_rolled_back(rows, []) is rows


def due(*ends: tuple[int, int, bool]) -> TransactionOutcomes:
    return TransactionOutcomes.of_due([Due(txn, at_seq, 100 + txn, 5, lost) for txn, at_seq, lost in ends])


def test_rows_come_in_the_order_of_the_commits() -> None:
    rows = tagged(("I", 1, 0, 9), ("I", 2, 1, 9), ("M", 3, None, None), ("I", 4, 0, 9), ("I", 5, 2, 9))
    out = committed_rows(rows, due((0, 10, False), (1, 7, False)))
    assert seqs(out) == [3, 2, 1, 4]
    assert out.column("commit_lsn").to_pylist() == [None, 101, 100, 100]
    assert [each and each.microsecond for each in out.column("commit_timestamp").to_pylist()] == [
        None,
        5,
        5,
        5,
    ]
    assert seqs(committed_rows(rows, due((0, 10, True)))) == [3], "of the lost there are no changes"


def test_rows_in_the_order_of_a_file_come_in_the_order_of_the_stream() -> None:
    """Also if all are of one transaction, and have the position of its commit from its Begin."""
    payloads = [encode.encode_begin(100, 7, 8)]
    payloads += [encode.encode_message(10 * n, "p", b"") for n in (1, 2)]
    records: Any = NativeDecoder(Options()).tag(
        [pa.array([*payloads, encode.encode_commit(100, 108, 7)])], None, None
    )
    rows = pa.Table.from_batches([records[0]]).filter(pa.array([False, True, True, False])).take([1, 0])
    outcomes = TransactionOutcomes.of_records(records[1])
    assert seqs(outcomes.released(rows)) == [1, 2]
    in_order = rows.take([1, 0])
    assert committed_rows(in_order, outcomes) is in_order


def test_what_becomes_of_each_kind_of_row() -> None:
    """Committed ones in the order of the commits, those outside of transactions between them, other kinds at the end."""
    rows = tagged(
        ("I", 1, 0, 10), ("I", 2, 1, 11), ("I", 3, 1, 12), ("B", 4, 1, None), ("M", 5, None, None), ("I", 6, 2, 13),
        ("I", 7, 3, 14), ("M", 8, 1, 12),
    )  # fmt: skip
    ends = [
        (0, None, "committed", 9),
        (1, 12, "aborted", 8),
        (1, None, "committed", 7),
        (2, None, "aborted", 8),
    ]
    names = ("txn", "subxid", "outcome", "at_seq")
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(names, each, strict=True)) for each in ends], OUTCOMES_SCHEMA
    )
    outcomes = TransactionOutcomes.of_batch(batch)
    for each in (outcomes, pickle.loads(pickle.dumps(outcomes))):
        assert seqs(each.released(rows)) == [5, 2, 8, 1, 4]
    assert seqs(outcomes.between(0, 7).released(rows)) == [5, 2, 8, 4], "a savepoint counts wherever it ended"
    assert seqs(outcomes.of_transactions(1, 5).released(rows)) == [5, 2, 8, 4]
    assert seqs(outcomes.of_transactions(0, 0).released(rows)) == [5, 1, 4]
    assert outcomes.of_transactions(0, 0).rolled_back == []
    assert seqs(outcomes.of_transactions(2, 5, [0, 1]).released(rows)) == [5, 2, 8, 1, 4]
    assert seqs(outcomes.of_transactions(2, 5, [1]).released(rows)) == [5, 2, 8, 4]
    assert (outcomes.committed_before(1), outcomes.committed_before(9)) == ([0], [0, 1])
    assert [outcomes.first_open(*each) for each in ((0, 9), (0, 8), (6, 7), (7, 7), (9, 20))] == [
        0, None, 1, None, None
    ]  # fmt: skip
    later = outcomes.of_transactions(0, 0).with_rollbacks_of(outcomes)
    assert (later.txns.tolist(), later.rolled_back) == ([0], [(1, 12, 8)])
    assert NO_OUTCOMES.last_commit is None


def test_rows_by_transaction() -> None:
    rows = tagged(("I", 1, 4, 9), ("I", 2, 0, 9), ("I", 3, 4, 9), ("I", 4, None, None))
    txns = values_of(rows, "txn", -1)
    found = {txn: seqs(part) for txn, part in by_transaction(rows, txns, txns >= 0)}
    assert found == {0: [2], 4: [1, 3]}
    assert list(by_transaction(rows, txns, txns > 9)) == []


def test_the_same_of_a_call_and_of_its_table() -> None:
    payloads = [
        encode.encode_stream_start(9, True), encode.encode_stream_stop(), encode.encode_stream_abort(9, 10),
        encode.encode_begin(100, 7, 8), encode.encode_commit(100, 108, 7), encode.encode_stream_abort(9, 9),
    ]  # fmt: skip
    records: Any = NativeDecoder(Options()).tag([pa.array(payloads)], None, None)[1]
    one, other = TransactionOutcomes.of_records(records), TransactionOutcomes.of_batch(records.outcomes)
    assert one.aborts == other.aborts == {0: [(10, 2)]}
    for name in ("txns", "at_seq", "commit_lsn", "commit_timestamp", "committed", "lost"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
    assert (one.txns.tolist(), one.committed.tolist()) == ([0, 3], [False, True])
    assert records.voided == [0]
    assert tag(payloads)[0].num_rows == 6
