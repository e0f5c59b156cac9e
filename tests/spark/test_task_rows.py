"""Which tagged rows a task decodes. No Spark is needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.spark.tasks.rows import ChangesBetween, changes_within, rows_of_relations
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

A = RelationSpec(16401, "public", "a", (ColumnSpec("id", 23, key=True),))
B = RelationSpec(16402, "public", "b", (ColumnSpec("id", 23, key=True),))


def _stream(rows: int, open_at_end: bool) -> list[bytes]:
    """Transactions that interleave, with a rollback to a savepoint, and one that stays open."""
    writer = Writer(streaming="on")
    wal = (
        writer.begin(1, 100, 0)
        + writer.change(A, "insert", new=["0"])
        + writer.change(B, "insert", new=["0"])
    )
    wal += writer.commit(100, 108, 0)
    wal += writer.stream_start(2)
    wal += [each for k in range(rows) for each in writer.change(A, "insert", new=[str(k)], xid=2 + k % 2)]
    wal += writer.stream_stop() + writer.begin(9, 200, 0)
    wal += [each for k in range(rows) for each in writer.change(B, "insert", new=[str(k)])]
    wal += writer.commit(200, 208, 0) + writer.stream_abort(2, 3) + writer.stream_commit(2, 300, 308, 0)
    wal += writer.begin(10, 400, 0)
    wal += [each for k in range(rows) for each in writer.change(A, "insert", new=[str(k)])]
    return wal if open_at_end else wal + writer.commit(400, 408, 0)


def _decoded(rows: pa.Table, catalog: pgo.Catalog) -> list[Any]:
    return [
        (each.relation.name, row)
        for batch in rows.combine_chunks().to_batches()
        for each in pgo.decode_tagged(batch, catalog).changes
        for row in each.batch.to_pylist()
    ]


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("open_at_end", [False, True])
def test_boundaries_among_changes_change_nothing(rows: int, open_at_end: bool) -> None:
    tagged, state = pgo.tag(_stream(rows, open_at_end))
    table = pa.Table.from_batches([tagged])
    outcomes = TransactionOutcomes.of_batch(pgo.decode_tagged(tagged, state.catalog).outcomes)
    stay = False
    for first, last in ((0, 10**6), (4, 10**6), (0, 100), (table.num_rows // 2, 10**6)):
        between = ChangesBetween(outcomes, first, last)
        for begin in range(0, table.num_rows, 50):
            part = table.slice(begin, 50)
            changes = outcomes.between(first, last).released(changes_within(part, {}))
            chosen = between.of(part)
            stay = stay or chosen.num_rows > changes.num_rows
            assert _decoded(chosen, state.catalog) == _decoded(changes, state.catalog)
            for relation in (A, B):
                own = rows_of_relations(chosen, (relation.oid,), ())
                wanted = [each for each in _decoded(changes, state.catalog) if each[0] == relation.name]
                assert _decoded(own, state.catalog) == wanted
    assert stay == (rows == 40)


def test_other_messages_do_not_stay() -> None:
    """A Relation among many changes is left out: its version may be one that the catalog of a table lacks."""
    writer = Writer()
    wal = writer.begin(1, 100, 0) + [
        each for k in range(60) for each in writer.change(A, "insert", new=[str(k)])
    ]
    tagged, state = pgo.tag(wal + writer.commit(100, 108, 0))
    outcomes = TransactionOutcomes.of_batch(pgo.decode_tagged(tagged, state.catalog).outcomes)
    chosen = ChangesBetween(outcomes, 0, 1000).of(pa.Table.from_batches([tagged]))
    assert set(chosen["kind"].to_pylist()) == {ord("I")}
