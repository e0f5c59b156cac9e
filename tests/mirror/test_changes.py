"""Decoded changes as runs of one version, in the order of the commits."""

from __future__ import annotations

import pyarrow as pa

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.merge.keys import ambiguous_change, key_of
from pgoutput_fast.mirror.follow.changes import committed_after, decoded_runs

NARROW = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True),))
WIDE = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("at", 1083)))
OTHER = RelationSpec(16402, "public", "o", (ColumnSpec("n", 23),), replica_identity="f")
QUARANTINE = pgo.Options(on_error="quarantine")


def _tagged(messages: list[bytes]) -> tuple[pa.RecordBatch, pgo.Catalog]:
    rows, state = pgo.tag(messages)
    changes = [kind in b"IUDT" for kind in rows.column("kind").to_pylist()]
    return rows.filter(pa.array(changes)), state.catalog


def test_a_version_that_comes_back_makes_three_runs() -> None:
    writer = Writer()
    sent: list[bytes] = []
    for n, (spec, new) in enumerate(
        [(NARROW, ["1"]), (NARROW, ["2"]), (WIDE, ["3", "12:30:00"]), (NARROW, ["4"]), (OTHER, ["5"])]
    ):
        sent += writer.begin(7 + n, 100 * (n + 1), 0) + writer.change(spec, "insert", new=new)
        sent += writer.commit(100 * (n + 1), 100 * (n + 1) + 8, 0)
    runs, rejected = decoded_runs(*_tagged(sent), QUARANTINE)
    assert rejected == []
    shown = [(run.relation.name, len(run.relation.columns), run.rows.column(11).to_pylist()) for run in runs]
    assert shown == [("t", 1, [1, 2]), ("t", 2, [3]), ("t", 1, [4]), ("o", 1, [5])]
    assert runs[1].rows.schema.field("at").type == pa.string()  # a plain type
    assert committed_after(runs[0].rows, 100)["id"].to_pylist() == [2]
    assert committed_after(runs[0].rows, 99)["id"].to_pylist() == [1, 2]
    assert committed_after(runs[0].rows, 200).num_rows == 0
    assert [key_of(run.relation) for run in runs] == [("id",), ("id",), ("id",), ()]


def test_a_change_that_is_lost_and_a_value_that_has_no_type() -> None:
    dated = RelationSpec(16403, "public", "d", (ColumnSpec("id", 23, key=True), ColumnSpec("on", 1082)))
    writer = Writer()
    sent = writer.begin(7, 100, 0)
    sent += writer.change(dated, "insert", new=["1", "infinity"])
    sent += writer.change(NARROW, "insert", new=["no number"])
    sent += writer.change(NARROW, "insert", new=["2"])
    sent += writer.commit(100, 108, 0)
    runs, rejected = decoded_runs(*_tagged(sent), QUARANTINE)
    assert {run.relation.name: run.rows.num_rows for run in runs} == {"d": 1, "t": 1}
    assert {(each.table, each.rows.num_rows, each.lost) for each in rejected} == {
        ("public.d", 1, False),
        ("public.t", 1, True),
    }


def test_an_array_of_the_key_that_loses_its_bound() -> None:
    """The commit of such a key counts, not what else comes with it."""
    spec = RelationSpec(
        16400, "public", "t", (ColumnSpec("k", 1007, key=True), ColumnSpec("n", 23), ColumnSpec("free", 1007))
    )
    writer = Writer()
    wal: list[bytes] = []
    for n, (k, free) in enumerate((("{1,2}", "[3:3]={7}"), ("[0:1]={1,2}", None), ("{3}", None)), 1):
        wal += writer.begin(n, 100 * n, 0) + writer.change(spec, "insert", new=[k, str(n), free])
        wal += writer.commit(100 * n, 100 * n + 8, 0)
    (run,), (rejected,) = decoded_runs(*_tagged(wal), pgo.Options())
    assert run.unclear is not None
    assert run.unclear[1] == 200
    assert "column 'k' of the key of public.t" in run.unclear[0]
    assert rejected.rows["column"].to_pylist() == ["free", "k"]
    assert committed_after(run.rows, 200).num_rows == 1
    assert ambiguous_change(committed_after(run.rows, 200), rejected.rows, run.relation) is None


def test_runs_are_one_piece_in_memory_of_their_own() -> None:
    """What waits must not be the decoder's memory: the decoder would keep it when it is free."""
    text = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    writer = Writer()
    sent = writer.begin(7, 100, 0)
    for n in range(20_000):  # several batches of the decoder
        sent += writer.change(text, "insert", new=[str(n), "a note of some length"])
    tagged, catalog = _tagged(sent + writer.commit(100, 108, 0))
    for begin, count in ((0, 20_000), (100, 1000)):
        before = pa.total_allocated_bytes()
        ((run,), _) = decoded_runs(tagged.slice(begin, count), catalog, QUARANTINE)
        assert pa.total_allocated_bytes() - before >= run.rows.nbytes  # Arrow's own memory
        assert {column.num_chunks for column in run.rows.columns} == {1}
        assert run.rows["id"].to_pylist() == list(range(begin, begin + count))
        del run
